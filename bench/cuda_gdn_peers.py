#!/usr/bin/env python3
"""Gated delta rule kernels of other libraries, for the table of bench/cuda_gdn.

usage: bench/cuda_gdn_peers.py [fla] [flashqla] [flashinfer]     all that are installed without one

Prompts of one sequence, heads of 128, float32 state in and out; bfloat16 queries, keys, values,
float32 log decays and strengths, which is what these kernels take (bench/cuda_gdn rule has the same
work from float32 inputs). Microseconds are medians of graph replays, between inputs that rotate so
that none is in the second cache. Errors are relative L2 of outputs and state against the
token-serial rule in float64 on the same rounded inputs, for random keys and for keys of period 3.
"Same" is whether a prompt read in two pieces has the bits of one read at once.

Needs PyTorch with CUDA and any of flash-linear-attention, flash-qla, flashinfer-python."""

import statistics
import sys

try:
    import torch
except ImportError:
    sys.exit("needs PyTorch with CUDA")

DIM, KEY_HEADS, REPLAYS = 128, 16, 15
COLD_BYTES = 256 << 20  # of inputs that one graph goes through
LENGTHS, VALUE_HEADS = (512, 4096, 16384, 65536), (16, 32, 48)
ERROR_LENGTH = 1024


def inputs(n_rows, n_value_heads, period=0, seed=0):
    """q, k [1][rows][key heads][128], v [1][rows][value heads][128], g, beta, state."""
    source = torch.Generator(device="cuda").manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, device="cuda", generator=source)

    def unit(x):
        return torch.nn.functional.normalize(x, dim=-1).bfloat16()

    q, k = noise(1, n_rows, KEY_HEADS, DIM), noise(1, n_rows, KEY_HEADS, DIM)
    v = noise(1, n_rows, n_value_heads, DIM).bfloat16()
    g = -0.05 * noise(1, n_rows, n_value_heads).abs()
    beta = torch.sigmoid(noise(1, n_rows, n_value_heads))
    if period:
        k = k[:, torch.arange(n_rows, device="cuda") % period] + 0.01 * k
        g, beta = torch.full_like(g, -1e-4), torch.full_like(beta, 0.999)
    return unit(q), unit(k), v, g, beta, 0.1 * noise(1, n_value_heads, DIM, DIM)


def serial(q, k, v, g, beta, state):
    """Outputs and state [head][key][value], token by token in float64."""
    share = v.shape[2] // q.shape[2]
    q, k = (x[0].double().repeat_interleave(share, 1) for x in (q, k))
    v, decay, beta, state = v[0].double(), g[0].double().exp(), beta[0].double(), state[0].double()
    outputs = []
    for t in range(v.shape[0]):
        state = state * decay[t][:, None, None]
        update = beta[t][:, None] * (v[t] - torch.einsum("hk,hkv->hv", k[t], state))
        state = state + k[t][:, :, None] * update[:, None, :]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state) * DIM**-0.5)
    return torch.stack(outputs), state


# ---- the libraries: functions of the inputs that return outputs and state [head][key][value] ----


def fla():
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    def run(q, k, v, g, beta, state):
        o, s = chunk_gated_delta_rule(
            q, k, v, g, beta, initial_state=state, output_final_state=True
        )
        return o[0], s[0]

    return run


def flashqla():
    from flash_qla import chunk_gated_delta_rule

    def run(q, k, v, g, beta, state):
        o, s = chunk_gated_delta_rule(
            q, k, v, g, beta, initial_state=state, output_final_state=True, auto_cp=False
        )
        return o[0], s[0]

    return run


def flashinfer():
    from flashinfer.gdn_prefill import chunk_gated_delta_rule

    def run(q, k, v, g, beta, state):
        ends = torch.tensor([0, q.shape[1]], device="cuda", dtype=torch.int32)
        o, s = chunk_gated_delta_rule(
            q[0], k[0], v[0], g[0].exp(), beta[0],
            initial_state=state.transpose(-1, -2).contiguous(), output_final_state=True,
            cu_seqlens=ends, use_cp=False, max_seqlen=q.shape[1]
        )
        return o, s[0].transpose(-1, -2)

    return run


# ---- measuring ----


def microseconds(run, rotation):
    """Of one call: all of the rotation in one graph."""
    for arguments in rotation[:2]:
        run(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for arguments in rotation:
            run(*arguments)
    times = []
    for _ in range(REPLAYS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / len(rotation))
    times = sorted(times[2:])
    return statistics.median(times), times[0], times[-1]


def rotation_of(n_rows, n_value_heads):
    n_bytes = 2 * n_rows * (2 * KEY_HEADS + n_value_heads) * DIM
    n = max(2, min(24, COLD_BYTES // n_bytes))
    return [inputs(n_rows, n_value_heads, seed=i) for i in range(n)]


def distance(x, y):
    return float((x.double() - y).norm() / y.norm())


def pieces_are_same(run):
    *rows, state = inputs(ERROR_LENGTH, 16)
    whole, last = run(*rows, state)
    cut = 500
    first, middle = run(*(x[:, :cut].contiguous() for x in rows), state)
    second, end = run(*(x[:, cut:].contiguous() for x in rows), middle[None].contiguous())
    return torch.equal(torch.cat([first, second]), whole) and torch.equal(end, last)


def measure(name, run):
    print(f"{name}\n  heads     rows        us       min       max")
    for n_value_heads in VALUE_HEADS:
        for n_rows in LENGTHS:
            us, least, most = microseconds(run, rotation_of(n_rows, n_value_heads))
            print(
                f"  {KEY_HEADS}/{n_value_heads} {n_rows:8} {us:9.1f} {least:9.1f} {most:9.1f}",
                flush=True,
            )
    for period in (0, 3):
        given = inputs(ERROR_LENGTH, 16, period, seed=5)
        (o, s), (o64, s64) = run(*given), serial(*given)
        keys = f"period {period}" if period else "random"
        print(f"  error, {keys} keys: outputs {distance(o, o64):.1e}, state {distance(s, s64):.1e}")
    print(f"  same in pieces: {'yes' if pieces_are_same(run) else 'no'}", flush=True)


def main(names):
    libraries = {"fla": fla, "flashqla": flashqla, "flashinfer": flashinfer}
    unknown = [name for name in names if name not in libraries]
    if unknown:
        sys.exit(f"{unknown[0]}: not one of {', '.join(libraries)}")
    if not torch.cuda.is_available():
        sys.exit("no CUDA device can be used")
    measured = 0
    for name in names or libraries:
        try:
            run = libraries[name]()
        except ImportError as error:
            print(f"{name}: not installed ({error})", flush=True)
            continue
        with torch.inference_mode():
            measure(name, run)
        measured += 1
    return 0 if measured else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
