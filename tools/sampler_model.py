#!/usr/bin/env python3
"""A plain model of the sampler (src/engine/sampler.h), and the writer of its reference data.

usage: tools/sampler_model.py [SEED] > sampler.jsonl

Every line is one call: settings, logits, tokens so far, and what has to come out: the tokens that
are left, their probabilities, the tokens drawn at a few positions, and raw log probabilities.
It shares no code and no shortcut with the sampler: it sorts everything, counts with dictionaries,
compares sequences token by token. Cases in which a rounding could turn a comparison are left out.
"""
import json
import math
import random
import struct
import sys

INF = float("inf")
FLT_MAX = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
MARGIN = 1e-9  # how far a comparison has to be from its turning point


class TooClose(Exception):
    pass


def below(a, b):
    """a < b, where that does not hang on the last digits."""
    if a != b and abs(a - b) <= MARGIN * max(1.0, abs(a), abs(b)):
        raise TooClose
    return a < b


def f32(x):
    """x rounded to a float, but finite."""
    if x >= FLT_MAX:
        return FLT_MAX
    if x <= -FLT_MAX:
        return -FLT_MAX
    return struct.unpack("<f", struct.pack("<f", x))[0]


# ---- random numbers ----

def philox(counter, key):
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = ((p1 >> 32) ^ x1 ^ k0, p1 & 0xFFFFFFFF,
                          (p0 >> 32) ^ x3 ^ k1, p0 & 0xFFFFFFFF)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return x0, x1, x2, x3


def uniform(seed, position):
    word = philox((position & 0xFFFFFFFF, 0, position >> 32, 0),
                  (seed & 0xFFFFFFFF, seed >> 32))[0]
    return ((word >> 8) + 0.5) * 2.0 ** -24


# ---- what changes logits ----

def mask(s, logits):
    for token in range(len(logits)):
        if token in s["banned"] or (s["allowed"] is not None and token not in s["allowed"]):
            logits[token] = -INF


def bias(s, logits):
    for token, amount in s["logit_bias"]:
        if logits[token] != -INF:
            logits[token] = f32(logits[token] + amount)


def last(tokens, n):
    return tokens if n == 0 else tokens[-n:]


def repetition(s, logits, prompt, output):
    r = s["repetition_penalty"]
    for token in set(last(prompt + output, s["penalty_window"])):
        if logits[token] != -INF and r != 0.0:
            logits[token] = f32(logits[token] / r if logits[token] > 0 else logits[token] * r)


def presence(s, logits, prompt, output):
    seen = last(output, s["penalty_window"])
    for token in set(seen):
        if logits[token] != -INF:
            penalty = s["frequency_penalty"] * seen.count(token) + s["presence_penalty"]
            logits[token] = f32(logits[token] - penalty)


def dry(s, logits, prompt, output):
    if s["dry_multiplier"] == 0.0:
        return
    base, allowed = s["dry_base"] or 1.75, s["dry_allowed_length"] or 2
    h = last(prompt + output, s["dry_window"])
    longest = {}
    for i in range(1, len(h)):  # would h[i] come again?
        span = 0
        while span < i and h[i - 1 - span] == h[-1 - span] and h[-1 - span] not in s["breakers"]:
            span += 1
        if span >= allowed and h[i] not in s["breakers"]:
            longest[h[i]] = max(span, longest.get(h[i], 0))
    for token, span in longest.items():
        if logits[token] != -INF:
            try:
                penalty = s["dry_multiplier"] * base ** (span - allowed)
            except OverflowError:
                penalty = INF
            logits[token] = f32(logits[token] - penalty)


# ---- filters: lists of (token, logit, weight) in order ----

def take_while_below(tokens, share):
    """The first tokens, while the weights before them are less than a share of all."""
    total, before, kept = sum(t[2] for t in tokens), 0.0, []
    for t in tokens:
        if kept and not below(before, share * total):
            break
        kept.append(t)
        before += t[2]
    return kept


def typical(s, tokens):
    if not 0.0 < s["typical_p"] < 1.0:
        return tokens
    total = sum(t[2] for t in tokens)
    p = [t[2] / total for t in tokens]
    surprise = [-math.log(x) for x in p]
    expected = sum(x * y for x, y in zip(p, surprise))
    # Tokens of equal logits must be equally typical to the last digit.
    distance = {t[1]: abs(y - expected) for t, y in zip(tokens, surprise)}
    values = sorted(distance.values())
    for a, b in zip(values, values[1:]):
        below(a, b)
        if a == b:
            raise TooClose
    by_type = sorted(tokens, key=lambda t: distance[t[1]])  # stable: equal ones stay in order
    kept = {t[0] for t in take_while_below(by_type, s["typical_p"])}
    return [t for t in tokens if t[0] in kept]


def top_p(s, tokens):
    return take_while_below(tokens, s["top_p"]) if s["top_p"] < 1.0 else tokens


def min_p(s, tokens):
    return [t for i, t in enumerate(tokens) if i == 0 or not below(t[2], s["min_p"] * tokens[0][2])]


def in_order(logits):
    return sorted((t for t in range(len(logits)) if logits[t] != -INF),
                  key=lambda t: (-logits[t], t))


def distribution(s, raw, prompt, output):
    """[(token, probability)] of what is left; None when nothing is."""
    logits = list(raw)
    mask(s, logits)
    bias(s, logits)
    repetition(s, logits, prompt, output)
    presence(s, logits, prompt, output)
    dry(s, logits, prompt, output)
    order = in_order(logits)
    if not order:
        return None
    if s["temperature"] == 0.0:
        return [(order[0], 1.0)]
    scaled = [(t, (logits[t] - logits[order[0]]) / s["temperature"]) for t in order]
    tokens = [(t, x, math.exp(x)) for t, x in scaled if not below(x, -40.0)]
    tokens = tokens[:s["top_k"]] if s["top_k"] > 0 else tokens
    tokens = min_p(s, top_p(s, typical(s, tokens)))
    total = sum(t[2] for t in tokens)
    return [(t[0], t[2] / total) for t in tokens]


def draw(candidates, u):
    running = 0.0
    for token, p in candidates:
        running += p
        if below(u, running):
            return token
    raise TooClose


def logprobs(raw, token, n):
    order = in_order(raw)
    best = raw[order[0]]
    log_total = math.log(sum(math.exp(raw[t] - best) for t in order))
    value = {t: raw[t] - best - log_total for t in order}
    return value.get(token), [[t, value[t]] for t in order[:n]]


# ---- cases ----

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 0.0,
       "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 0.0,
       "penalty_window": 0, "dry_multiplier": 0.0, "dry_base": 0.0, "dry_allowed_length": 0,
       "dry_window": 0, "seed": "0", "logit_bias": [], "banned": [], "allowed": None, "breakers": []}

CHOICES = {
    "temperature": [0.0, 0.3, 0.6, 0.7, 1.0, 1.0, 1.5, 5.0, 100.0],
    "top_k": [0, 0, 1, 2, 5, 20, 40, 1000],
    "top_p": [0.0, 0.1, 0.5, 0.8, 0.95, 0.999, 1.0],
    "min_p": [0.0, 0.01, 0.05, 0.3, 1.0],
    "typical_p": [0.0, 0.01, 0.2, 0.5, 0.9, 0.99, 1.0],
    "presence_penalty": [0.0, -2.0, 0.5, 1.5, 2.0, 50.0],
    "frequency_penalty": [0.0, -1.0, 0.1, 0.7, 2.0],
    "repetition_penalty": [0.0, 0.5, 1.0, 1.05, 1.3, 3.0, 100.0],
    "penalty_window": [0, 1, 5, 20, 1000],
    "dry_multiplier": [0.0, 0.1, 0.8, 5.0, 100.0],
    "dry_base": [0.0, 1.0, 1.2, 1.75, 3.0, 100.0],
    "dry_allowed_length": [0, 1, 2, 3, 10],
    "dry_window": [0, 1, 2, 7, 64, 1000],
}
FLOATS = ("temperature", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty",
          "repetition_penalty", "dry_multiplier", "dry_base")


def make_history(rng, n, kinds):
    """Tokens with loops: fresh ones, and stretches copied from before."""
    tokens = []
    while len(tokens) < n:
        if tokens and rng.random() < 0.4:
            start = rng.randrange(len(tokens))
            for i in range(rng.randrange(1, 30)):
                tokens.append(tokens[start + i])
        else:
            tokens.append(rng.randrange(kinds))
    return tokens[:n]


def make_case(rng, features):
    n = rng.choice([1, 2, 7, 20, 33, 64, 100])
    spread = rng.choice([0.5, 2.0, 4.0, 12.0])
    ties = rng.random() < 0.3
    logits = [rng.gauss(0.0, spread) for _ in range(n)]
    # Few digits: short lines, and ties where wanted.
    logits = [f32(round(x, 0 if ties else 3)) for x in logits]
    for _ in range(rng.choice([0, 0, n // 3])):
        logits[rng.randrange(n)] = -INF
    s = dict(OFF)
    for name in features:
        if name in CHOICES:
            s[name] = rng.choice(CHOICES[name])
        elif name == "logit_bias":
            s[name] = [[rng.randrange(n), rng.choice([-100.0, -1.0, 0.5, 3.0, 100.0])]
                       for _ in range(rng.randrange(1, 5))]
        else:  # a set
            s[name] = sorted(rng.sample(range(n), rng.randrange(n)))
    for name in FLOATS:
        s[name] = f32(s[name])
    s["seed"] = "%016x" % rng.getrandbits(64)
    history = make_history(rng, rng.choice([0, 1, 2, 10, 50, 120]), rng.randrange(1, n + 1))
    n_prompt = rng.randrange(len(history) + 1)
    return s, logits, history, n_prompt


def answer(s, logits, history, n_prompt, rng):
    left = distribution(s, logits, history[:n_prompt], history[n_prompt:])
    case = {k: v for k, v in s.items() if v != OFF[k]}
    case["logits"] = [None if x == -INF else x for x in logits]
    case["history"], case["n_prompt"] = history, n_prompt
    if left is None:
        case["left"] = None
        return case
    case["left"] = [[t, float("%.14g" % p)] for t, p in left]
    first = rng.choice([len(history), 2 ** 32 - 1, rng.getrandbits(40)])
    case["position"] = first
    case["drawn"] = [draw(left, uniform(int(s["seed"], 16), first + i)) for i in range(4)]
    token, n_top = rng.randrange(len(logits)), rng.choice([0, 1, 5, 20])
    if any(x != -INF for x in logits):
        logprob, top = logprobs(logits, token, n_top)
        case["logprob"] = [token, logprob and float("%.14g" % logprob), n_top,
                           [[t, float("%.14g" % x)] for t, x in top]]
    return case


FEATURES = [[name] for name in CHOICES] + [
    ["logit_bias"], ["banned"], ["allowed"],
    ["dry_multiplier", "dry_base", "dry_allowed_length"],
    ["dry_multiplier", "dry_base", "dry_allowed_length", "dry_window", "breakers"],
    ["repetition_penalty", "penalty_window"],
    ["presence_penalty", "frequency_penalty", "penalty_window"],
    ["temperature", "top_k", "top_p", "min_p"],
    ["temperature", "typical_p"],
    ["temperature", "top_k", "typical_p", "top_p", "min_p"],
    list(CHOICES) + ["logit_bias", "banned", "breakers"],
    list(CHOICES) + ["logit_bias", "banned", "allowed", "breakers"],
]


def main():
    rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    n_cases = 0
    while n_cases < 720:
        case = make_case(rng, FEATURES[n_cases % len(FEATURES)])
        try:
            line = answer(*case, rng)
        except TooClose:
            continue
        print(json.dumps(line, separators=(",", ":")))
        n_cases += 1


if __name__ == "__main__":
    main()
