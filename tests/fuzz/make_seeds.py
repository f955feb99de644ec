#!/usr/bin/env python3
"""Writes the first inputs of the fuzz targets: small valid files, one for each branch of a format.

usage: tests/fuzz/make_seeds.py [tests/fuzz/corpus]
Names begin with "seed-"; what a fuzzer found lies beside them under other names.
"""
import json
import struct
import sys
from pathlib import Path

VOCAB = 264
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
MERGED = ["ab", "abc", "\u0120a"]
MERGES = ["a b", "ab c", "\u0120 a"]
TEMPLATE = ("{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + "
            "'<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}"
            "{{ '<|im_start|>assistant\\n' }}{%- endif %}")
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
           r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_alphabet():
    fresh = 0x100
    for byte in range(256):
        if 0x20 < byte < 0x7F or (byte > 0xA0 and byte != 0xAD):
            yield chr(byte)
        else:
            yield chr(fresh)
            fresh += 1


TOKENS = list(byte_alphabet()) + MERGED + SPECIAL

GRAMMARS = [
    'root ::= "a" b* | [^x-z]{2,20}\nb ::= ("q" | "\\x41\\u00e9")+ # end\n  | .{3}',
    'root ::= "[" (root ("," root)*)? "]"',
    'root ::= a a\na ::= "x"? "y"{0,3}',
    'root ::= a\na ::= a "x" | "y"',
    'root ::= ((("a" | ) )?)* "\n"',
]
SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+\\d{2}$|x"},
                                      "b": {"type": ["integer", "null"], "minimum": -3.5}},
     "required": ["a", "c"], "patternProperties": {"^q": {"enum": [1, "x", None]}}},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "prefixItems": [{"const": 1.5}],
                                          "items": {"$ref": "#/$defs/n"}, "maxItems": 4}}},
    {"allOf": [{"properties": {"a": {"type": "number"}}}, {"anyOf": [{"required": ["a"]}, True]}],
     "type": "object", "additionalProperties": False},
    {"oneOf": [{"type": "string", "format": "date-time"}, {"type": "integer", "multipleOf": 7},
               {"type": "boolean"}]},
    {"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": {"maximum": 9.25},
     "minProperties": 1},
    {"type": "string", "minLength": 2, "maxLength": 300},
]

# ---- GGUF ----

U8, U32, F32, BOOL, STRING, ARRAY, I32, U64 = 0, 4, 6, 7, 8, 9, 5, 10
FORMATS = {U8: "<B", U32: "<I", F32: "<f", BOOL: "<B", I32: "<i", U64: "<Q"}
# Type number: values and bytes of a block.
TYPES = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24),
         8: (32, 34), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176),
         14: (256, 210), 20: (32, 18), 23: (256, 136), 39: (32, 17)}


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, item):
    return string(item) if kind == STRING else struct.pack(FORMATS[kind], item)


def key(name, kind, item):
    if isinstance(item, list):
        items = b"".join(value(kind, i) for i in item)
        return string(name) + struct.pack("<IIQ", ARRAY, kind, len(item)) + items
    return string(name) + struct.pack("<I", kind) + value(kind, item)


def gguf(keys, tensors, version=3, alignment=32):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    body = b"".join(key(*k) for k in keys)
    offset = 0
    for name, kind, ne in tensors:
        block, n_bytes = TYPES[kind]
        size = n_bytes * (ne[0] // block)
        for extent in ne[1:]:
            size *= extent
        body += string(name) + struct.pack("<I", len(ne)) + struct.pack("<%dQ" % len(ne), *ne)
        body += struct.pack("<IQ", kind, offset)
        offset += -(-size // alignment) * alignment
    return head + body


def model_keys(arch, **changes):
    values = {
        "block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32,
        "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 256,
        "attention.value_length": 256, "ssm.conv_kernel": 4, "ssm.state_size": 128,
        "ssm.group_count": 1, "ssm.time_step_rank": 2, "ssm.inner_size": 256,
        "full_attention_interval": 2, "rope.dimension_count": 64,
    }
    values.update(changes)
    keys = [("general.architecture", STRING, arch)]
    for name, number in values.items():
        if number is not None:
            keys.append((arch + "." + name, U32, number))
    keys.append((arch + ".attention.layer_norm_rms_epsilon", F32, 1e-6))
    keys.append((arch + ".rope.freq_base", F32, 1e7))
    return keys


def text_keys():
    return [
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "qwen35"),
        ("tokenizer.ggml.tokens", STRING, TOKENS),
        ("tokenizer.ggml.token_type", I32, [1] * (256 + len(MERGED)) + [3, 3, 3, 4, 4]),
        ("tokenizer.ggml.merges", STRING, MERGES),
        ("tokenizer.ggml.eos_token_id", U32, 261),
        ("tokenizer.chat_template", STRING, TEMPLATE),
    ]


def gdn_block(i, h, kind, nk=1, nv=2):
    p = "blk.%d." % i
    return [(p + "attn_norm.weight", 0, [h]), (p + "ssm_a", 0, [nv]),
            (p + "ssm_conv1d.weight", 0, [4, (2 * nk + nv) * 128]), (p + "ssm_dt.bias", 0, [nv]),
            (p + "ssm_alpha.weight", kind, [h, nv]), (p + "ssm_beta.weight", kind, [h, nv]),
            (p + "attn_qkv.weight", kind, [h, (2 * nk + nv) * 128]),
            (p + "attn_gate.weight", kind, [h, nv * 128]), (p + "ssm_norm.weight", 0, [128]),
            (p + "ssm_out.weight", kind, [nv * 128, h]),
            (p + "post_attention_norm.weight", 0, [h])]


def attention_block(i, h, kind, heads=2, kv=1):
    p = "blk.%d." % i
    return [(p + "attn_norm.weight", 0, [h]), (p + "attn_q.weight", kind, [h, heads * 512]),
            (p + "attn_k.weight", kind, [h, kv * 256]), (p + "attn_v.weight", kind, [h, kv * 256]),
            (p + "attn_output.weight", kind, [heads * 256, h]),
            (p + "attn_q_norm.weight", 0, [256]), (p + "attn_k_norm.weight", 0, [256]),
            (p + "post_attention_norm.weight", 0, [h])]


def dense_ffn(i, h, kind, f):
    p = "blk.%d." % i
    return [(p + "ffn_gate.weight", kind, [h, f]), (p + "ffn_up.weight", kind, [h, f]),
            (p + "ffn_down.weight", kind, [f, h])]


def moe_ffn(i, h, kind, e, f):
    p = "blk.%d." % i
    return [(p + "ffn_gate_inp.weight", 0, [h, e]),
            (p + "ffn_gate_exps.weight", kind, [h, f, e]),
            (p + "ffn_up_exps.weight", kind, [h, f, e]),
            (p + "ffn_down_exps.weight", kind, [f, h, e]),
            (p + "ffn_gate_inp_shexp.weight", 0, [h]),
            (p + "ffn_gate_shexp.weight", kind, [h, f]), (p + "ffn_up_shexp.weight", kind, [h, f]),
            (p + "ffn_down_shexp.weight", kind, [f, h])]


def ends(h, kind, tied=True):
    tensors = [("token_embd.weight", kind, [h, VOCAB]), ("output_norm.weight", 0, [h])]
    return tensors if tied else tensors + [("output.weight", kind, [h, VOCAB])]


def dense(kind, h=32, tied=True):
    return (ends(h, kind, tied) + gdn_block(0, h, kind) + dense_ffn(0, h, kind, h) +
            attention_block(1, h, kind) + dense_ffn(1, h, kind, h))


def write_gguf(folder):
    small = [k for k in text_keys() if "template" not in k[0]]
    write(folder / "seed-q8_0", gguf(model_keys("qwen35") + text_keys(), dense(8)))
    write(folder / "seed-bf16-v2",
          gguf(model_keys("qwen35", **{"full_attention_interval": None}) + small +
               [("qwen35.attention.recurrent_layers", BOOL, [1, 0])], dense(30, tied=False), 2))
    for kind in (1, 2, 3, 6, 7, 20, 39):
        write(folder / ("seed-type-%d" % kind), gguf(model_keys("qwen35"), dense(kind)))
    for kind in (10, 11, 12, 13, 14, 23):
        write(folder / ("seed-type-%d" % kind),
              gguf(model_keys("qwen35", block_count=1, full_attention_interval=1,
                              embedding_length=256, feed_forward_length=256),
                   ends(256, kind) + attention_block(0, 256, kind) + dense_ffn(0, 256, kind, 256)))
    moe = {"expert_count": 3, "expert_used_count": 2, "expert_feed_forward_length": 32,
           "expert_shared_feed_forward_length": 32, "feed_forward_length": None}
    write(folder / "seed-moe",
          gguf(model_keys("qwen35moe", **moe) + [("qwen35moe.head_count_kv", U32, [0, 1])],
               ends(32, 8) + gdn_block(0, 32, 8) + moe_ffn(0, 32, 8, 3, 32) +
               attention_block(1, 32, 8) + moe_ffn(1, 32, 8, 3, 32)))
    mtp = [("blk.2.nextn.eh_proj.weight", 8, [64, 32]), ("blk.2.nextn.enorm.weight", 0, [32]),
           ("blk.2.nextn.hnorm.weight", 0, [32]),
           ("blk.2.nextn.shared_head_norm.weight", 0, [32])]
    write(folder / "seed-mtp",
          gguf(model_keys("qwen35", block_count=3, nextn_predict_layers=1),
               dense(8) + attention_block(2, 32, 8) + dense_ffn(2, 32, 8, 32) + mtp))
    yarn = [("qwen35.rope.scaling.type", STRING, "yarn"), ("qwen35.rope.scaling.factor", F32, 4.0),
            ("qwen35.rope.scaling.original_context_length", U32, 64),
            ("general.alignment", U32, 64), ("general.sampling.top_k", I32, 20)]
    keys = model_keys("qwen35", block_count=1, full_attention_interval=1) + yarn
    raw = gguf(keys, ends(32, 8) + attention_block(0, 32, 8) + dense_ffn(0, 32, 8, 32), 3, 64)
    write(folder / "seed-yarn", raw)
    write(folder / "seed-empty", gguf([], []))


# ---- folders ----

def section(name, content):
    if not isinstance(content, str):
        content = json.dumps(content)
    return "--- %s\n%s\n" % (name, content)


def tokenizer_json():
    added = [{"id": 259 + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": i < 3} for i, t in enumerate(SPECIAL)]
    return {"version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated",
                 "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                 "use_regex": False}]},
            "post_processor": None,
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(TOKENS[:259])},
                      "merges": [MERGES[0], MERGES[1], MERGES[2].split(" ")]}}


def header(tensors, kind="BF16", size=2):
    out, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        n = size
        for extent in shape:
            n *= extent
        out[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + n]}
        offset += n
    return out


def hf_config(**changes):
    config = {"model_type": "qwen3_5_text", "hidden_size": 32, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256,
              "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "intermediate_size": 32,
              "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
              "linear_value_head_dim": 128, "linear_num_key_heads": 1,
              "linear_num_value_heads": 2, "tie_word_embeddings": True, "eos_token_id": [261],
              "layer_types": ["linear_attention", "full_attention"],
              "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25}}
    config.update(changes)
    return config


def hf_gdn(p, h, nk=1, nv=2, conv=(1, 4)):
    p += "linear_attn."
    c = (2 * nk + nv) * 128
    return [(p + "in_proj_qkv.weight", [c, h]), (p + "in_proj_z.weight", [nv * 128, h]),
            (p + "in_proj_a.weight", [nv, h]), (p + "in_proj_b.weight", [nv, h]),
            (p + "conv1d.weight", [c, *conv]), (p + "A_log", [nv]), (p + "dt_bias", [nv]),
            (p + "norm.weight", [128]), (p + "out_proj.weight", [h, nv * 128])]


def hf_attention(p, h, heads=2, kv=1):
    p += "self_attn."
    return [(p + "q_proj.weight", [heads * 512, h]), (p + "k_proj.weight", [kv * 256, h]),
            (p + "v_proj.weight", [kv * 256, h]), (p + "o_proj.weight", [h, heads * 256]),
            (p + "q_norm.weight", [256]), (p + "k_norm.weight", [256])]


def hf_layer(p, mixer, h, ffn):
    return ([(p + "input_layernorm.weight", [h]), (p + "post_attention_layernorm.weight", [h])] +
            mixer(p, h) + [(p + "mlp." + name, shape) for name, shape in ffn])


def hf_model(prefix, h=32, conv=(1, 4), ffn=None):
    ffn = ffn or [("gate_proj.weight", [h, h]), ("up_proj.weight", [h, h]),
                  ("down_proj.weight", [h, h])]
    return ([(prefix + "embed_tokens.weight", [VOCAB, h]), (prefix + "norm.weight", [h])] +
            hf_layer(prefix + "layers.0.", lambda p, h: hf_gdn(p, h, conv=conv), h, ffn) +
            hf_layer(prefix + "layers.1.", hf_attention, h, ffn))


def write_folder(folder):
    single = header(hf_model("model."))
    write(folder / "seed-dense",
          section("config.json", hf_config()) + section("model.safetensors", single) +
          section("tokenizer.json", tokenizer_json()) +
          section("generation_config.json", {"temperature": 0.6, "top_k": 20, "top_p": 0.95}) +
          section("tokenizer_config.json", {"chat_template": TEMPLATE}))
    mlx = hf_model("language_model.model.", conv=(4, 1))
    write(folder / "seed-mlx-f16",
          section("config.json", {"model_type": "qwen3_5", "text_config": hf_config()}) +
          section("model.safetensors", header(mlx, "F16")))
    e, f, h = 3, 32, 32
    experts = [("gate.weight", [e, h]), ("experts.gate_up_proj", [e, 2 * f, h]),
               ("experts.down_proj", [e, h, f]), ("shared_expert_gate.weight", [1, h]),
               ("shared_expert.gate_proj.weight", [f, h]), ("shared_expert.up_proj.weight", [f, h]),
               ("shared_expert.down_proj.weight", [h, f])]
    tensors = hf_model("model.language_model.", ffn=experts)
    moe = hf_config(model_type="qwen3_5_moe_text", num_experts=e, num_experts_per_tok=2,
                    moe_intermediate_size=f, shared_expert_intermediate_size=f)
    del moe["intermediate_size"]
    index = {"metadata": {"total_size": 1}, "weight_map": {
        name: "a.safetensors" if i < 8 else "b.safetensors" for i, (name, _) in enumerate(tensors)}}
    write(folder / "seed-moe-split",
          section("config.json", {"model_type": "qwen3_5_moe", "text_config": moe}) +
          section("a.safetensors", header(tensors[:8], "F32", 4)) +
          section("b.safetensors", header(tensors[8:], "F32", 4)) +
          section("model.safetensors.index.json", index) +
          section("chat_template.jinja", TEMPLATE))
    write(folder / "seed-raw",
          section("config.json", {}) + "--- raw model.safetensors\n\2\0\0\0\0\0\0\0{}")


# ---- texts ----

MESSAGES = [
    [{"role": "system", "content": "a"}, {"role": "developer", "content": None},
     {"role": "user", "content": [{"type": "text", "text": "b"}, "c",
                                  {"type": "image_url", "image_url": {"url": "x"}}]}],
    [{"role": "user", "content": [{"type": "input_text", "text": "b"}, {"text": "d"}]},
     {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [
         {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1.5]}"}},
         {"name": "g", "arguments": "no object"}, {"function": {"name": "h", "arguments": None}}]},
     {"role": "function", "name": "f", "content": "7"}],
    [{"role": "assistant", "function_call": {"name": "f", "arguments": ""}, "thinking": "t"}],
]

TEMPLATES = [
    TEMPLATE,
    "{% macro m(a, b=2) -%}{{ a|upper ~ b }}{%- endmacro %}{% for x in messages[::-1] if x.role "
    "is defined %}{{ loop.index0 }}{{ m(x.content|trim, b=loop.last) }}{% else %}none{% endfor %}"
    "{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n // 2 ** 3 % 5 }}",
    "{% if tools is iterable and tools|length > 0 %}{{ tools|tojson(indent=2) }}{% elif not x %}"
    "{{ 'a' if true else 'b' }}{% endif %}{{ messages|map(attribute='role')|unique|join(', ') }}"
    "{{ strftime_now('%Y-%m-%d') }}{# c #}{{ '%s-%05.1f' % ('x', 1.25) }}",
    "{% for m in messages %}{% set c = m.content.split('</think>')[-1].lstrip('\\n') %}"
    "{{ c[1:-1]|replace('a', 'b')|e|indent(2) }}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{% continue %}{% endfor %}{{ raise_exception('no ' ~ 1e3) if 1 < 2 <= 3 and 'a' in 'abc' }}",
    "{% set d = dict(a=1, b=[1, 2.5, none]) %}{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}"
    "{% call(x) f() %}{{ x }}{% endcall %}{% filter upper %}a{% endfilter %}{% raw %}{{ {% endraw %}"
    "{% generation %}{{ range(3)|list|sum + (4, 5)|last }}{% endgeneration %}{{ 'a'.format(1) }}",
]

# Options as in fuzz_outparse.c, and the answer.
ANSWERS = [
    (9, "Hm.\n</think>\n\nLook.\n\n<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n"
        "<parameter=i>\n5\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        "{\"name\": \"f\", \"arguments\": {\"s\": \"\\u00e9\"}}\n</tool_call>"),
    (8, "<function name=\"f\"><parameter=o>{'a': True,}</parameter></parameter>x<parameter=n>.5"
        "<parameter=s>1</parameter> 2</parameter></function><function=g></function> y"),
    (9, "so <tool_call>{\"name\": \"</think>\n\n\u4e2d\n<tool_call>[{\"function\": {\"name\": \"f\","
        " \"arguments\": \"{}\"}, \"id\": \"1\"}]}</tool_call>"),
    (24, "<tool_call><function=f>{\"s\": [1, {\"b\": null}]}</function></tool_call> <think>\nx"),
    (5, "a <tool_call><function=f></function></tool_call>\n\n</think> b </think> <tool"),
    (2, "<tool_call>\n<function=f>\n</function>\n</tool_call>"),
]



def write_texts(corpus):
    write(corpus / "tokenizer_json" / "seed-small", json.dumps(tokenizer_json()))
    added = {"262": {"content": "<think>", "special": False, "lstrip": False, "rstrip": False,
                     "single_word": False, "normalized": False}}
    write(corpus / "tokenizer_json" / "seed-added",
          json.dumps(tokenizer_json(), ensure_ascii=False) + "\n--- added\n" + json.dumps(added))
    for i, template in enumerate(TEMPLATES):
        write(corpus / "template" / ("seed-%d" % i), template)
    given = {"messages": MESSAGES[1], "tools": [], "variables": {"x": "\u00e9<|im_end|>"}}
    write(corpus / "template" / "seed-input",
          TEMPLATES[3] + "\n--- input\n" + json.dumps(given))
    for i, messages in enumerate(MESSAGES):
        write(corpus / "chat" / ("seed-%d" % i), json.dumps(messages))
    write(corpus / "json" / "seed-values",
          '{"a": [1, -0.5e-3, true, null], "b\\u00e9\\ud83d\\ude00": {"": "\\u0000\\n"}, '
          '"n": 10000000000000000000000, "i": -9223372036854775808}')
    for i, number in enumerate((0.1, 5e-324, 1.7976931348623157e308, 9007199254740993.0)):
        write(corpus / "json" / ("seed-number-%d" % i), struct.pack("<d", number))
    text = "It's 12  <|a|>b <t>ab</t>\n\n \u00e9e\u0301 \u4e2d\u6587 ab<|a|>aaaa\t".encode()
    write(corpus / "encode" / "seed-trusted", b"\3\0" + text)
    write(corpus / "encode" / "seed-ranges", b"\7\3\x04\x05\x02\x03\x01\x08" + text)
    write(corpus / "encode" / "seed-broken", b"\x0b\1\3\4" + text + b"\xff\xe4\xb8a\xed\xa0\x80")
    write(corpus / "decode" / "seed-stops", b"\5</s>\nabab\n\xc3\xa9\n\nabaabab\xc3\xa9 x</s>")
    write(corpus / "decode" / "seed-broken", b"\2\nab\xe4\xb8\xad\xe4\xb8\xff\xf0\x9f\x98\x80\xf0\x9f")
    for i, grammar in enumerate(GRAMMARS):
        write(corpus / "grammar" / ("seed-%d" % i), grammar)
    for i, schema in enumerate(SCHEMAS):
        write(corpus / "schema" / ("seed-%d" % i), json.dumps(schema))
    for i, (choice, answer) in enumerate(ANSWERS):
        write(corpus / "outparse" / ("seed-%d" % i), bytes([choice, i]) + answer.encode())


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def main():
    corpus = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/fuzz/corpus")
    write_gguf(corpus / "gguf")
    write_folder(corpus / "folder")
    write_texts(corpus)


if __name__ == "__main__":
    main()
