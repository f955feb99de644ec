#!/usr/bin/env python3
"""The canonical arithmetic once more, slow and obvious: docs/EXACTNESS.md in numpy.

Written apart from the C kernels, block decoding included, so that a mistake would have to be made
twice to go unnoticed. tests/unit/test_canon.c sends inputs and compares the bits of the answers.

usage: canon.py IN OUT

IN is a sequence of operations. Each is a line of ASCII words, `op NAME ARGUMENT...`, then arrays,
each a line `TYPE COUNT` (numpy type codes: f4, i1, i2, u1) followed by the raw little-endian
elements, then a line `end`. OUT receives the raw elements of the results, one after the other.
"""
import sys
from fractions import Fraction

import numpy as np

F32, F64 = np.float32, np.float64


# ---- one rounding per operation ----
# numpy's float32 and float64 +, -, *, / and sqrt round once. It has no fma.

def fma(a, b, c):
    """a * b + c in float32, rounded once.

    The product of two float32 is exact in float64. The sum is rounded to odd: if it was inexact,
    of the two neighbours the one with an odd last bit is taken. An odd float64 is no float32 and
    no middle between two, so rounding it to float32 rounds as the exact sum would.
    """
    p = np.asarray(a, F64) * np.asarray(b, F64)
    c = np.asarray(c, F64)
    s = p + c
    back = s - p
    error = (p - (s - back)) + (c - back)
    even = (np.asarray(s).view(np.int64) & 1) == 0
    neighbour = np.nextafter(s, np.where(error > 0, np.inf, -np.inf))
    return F32(np.where(np.isfinite(s) & (error != 0) & even, neighbour, s))


def fma64(a, b, c):
    """a * b + c in float64, rounded once, by rational numbers."""
    def one(x, y, z):
        x, y, z = float(x), float(y), float(z)
        if not np.isfinite([x, y, z]).all():
            return x * y + z
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        return float(exact) if exact != 0 else x * y + z
    a, b, c = np.broadcast_arrays(a, b, c)
    flat = [one(x, y, z) for x, y, z in zip(a.ravel(), b.ravel(), c.ravel())]
    return np.array(flat, F64).reshape(a.shape)


def h32(text):
    return F32(float.fromhex(text))


def h64(text):
    return F64(float.fromhex(text))


# ---- elementary functions ----

def exp(x):
    x = np.asarray(x, F32).reshape(-1)
    big = h32("0x1.8p23")
    shifted = fma(x, h32("0x1.715476p+0"), big)
    n = shifted - big
    r = fma(n, -h32("0x1.62e43p-1"), x)
    r = fma(n, h32("0x1.05c61p-29"), r)
    p = h32("0x1.6ac74ep-10")
    for c in ("0x1.123dep-7", "0x1.555858p-5", "0x1.55548cp-3", "0x1.fffffcp-2", "1", "1"):
        p = fma(p, r, h32(c))
    y = (p.view(np.uint32) + (shifted.view(np.uint32) << np.uint32(23))).view(F32)
    y = np.where(x > h32("0x1.62e42ep6"), F32(np.inf), y)
    y = np.where(x < F32(-87.3), F32(0), y)
    return np.where(np.isnan(x), x, y)


def log_reduced(f, e):
    s = f / (F64(2) + f)
    z = s * s
    p = h64("0x1.91159e39fc203p-4")
    for c in ("0x1.c62b138f8db23p-4", "0x1.249411f18a669p-3", "0x1.999996a9425efp-3",
              "0x1.555555561e45dp-2"):
        p = fma64(p, z, h64(c))
    twice = F64(2) * s
    return fma64(e, h64("0x1.62e42fefa39efp-1"), fma64(twice, z * p, twice))


def log_split(d):
    """m and e with d = m * 2^e and m from sqrt(1/2) to sqrt(2)."""
    m, e = np.frexp(d)
    low = m < h64("0x1.6a09e667f3bcdp-1")
    return np.where(low, m * 2, m), np.where(low, e - 1, e).astype(F64)


def log(x):
    x = np.asarray(x, F32)
    m, e = log_split(np.where((x > 0) & np.isfinite(x), x, F32(1)).astype(F64))
    y = F32(log_reduced(m - F64(1), e))
    y = np.where(x == np.inf, x, y)
    y = np.where(x == 0, F32(-np.inf), y)
    return np.where(x >= 0, y, F32(np.nan))


def log1p(x):
    x = np.asarray(x, F32)
    safe = np.where((x > -1) & np.isfinite(x), x, F32(0)).astype(F64)
    m, e = log_split(F64(1) + safe)
    y = F32(log_reduced(np.where(e == 0, safe, m - F64(1)), e))
    y = np.where(x == np.inf, x, y)
    y = np.where(x == -1, F32(-np.inf), y)
    return np.where(x >= -1, y, F32(np.nan))


def sincos(angle):
    x = np.asarray(angle, F32).astype(F64)
    x = np.where(np.abs(x) > 2.0**40, x * F64(0), x)
    big = h64("0x1.8p52")  # the product is rounded to an integer once
    n = fma64(x, h64("0x1.45f306dc9c883p-1"), big) - big
    r = fma64(n, -h64("0x1.921fb54442d18p+0"), x)
    r = fma64(n, -h64("0x1.1a62633145c07p-54"), r)
    z = r * r
    s = h64("0x1.6cd859e2e10bfp-19")
    for c in ("-0x1.a00f9dad31939p-13", "0x1.111108965455ap-7", "-0x1.5555554cb9f61p-3"):
        s = fma64(s, z, h64(c))
    s = fma64(r * z, s, r)
    c = h64("-0x1.23d800201e508p-22")
    for k in ("0x1.a00f117dba947p-16", "-0x1.6c16b40040f81p-10", "0x1.55555546f4302p-5",
              "-0x1.ffffffffebfc1p-2", "1"):
        c = fma64(c, z, h64(k))
    quadrant = np.where(np.isfinite(n), n, 0).astype(np.int64) % 4
    sine = np.choose(quadrant, [s, c, -s, -c])
    cosine = np.choose(quadrant, [c, -s, -c, s])
    return F32(sine), F32(cosine)


def sigmoid(x):
    x = np.asarray(x, F32)
    return np.where(x < -87, exp(x), F32(1) / (F32(1) + exp(-x)))


def silu(x):
    return x / (F32(1) + exp(-x))


def softplus(x):
    return np.where(x > 20, x, log1p(exp(x)))


# ---- activation blocks ----

def quantise(x):
    n_blocks = (len(x) + 31) // 32
    q, d = np.zeros(32 * n_blocks, np.int8), np.zeros(n_blocks, F32)
    for b in range(n_blocks):
        block = x[32 * b:32 * b + 32]
        largest = np.max(np.abs(block))
        if not np.isfinite(block).all():
            d[b] = np.nan
        elif largest >= 2.0**-100:
            d[b] = largest / F32(127)
            q[32 * b:32 * b + len(block)] = np.rint(block * (F32(127) / largest))
    return q, d, q.reshape(-1, 16).astype(np.int16).sum(axis=1, dtype=np.int16)


# ---- weight blocks ----
# A decoder turns the bytes of a block into parts of 32 weights, (w, ints, w_min, min_ints): weight
# i of the part is w * ints[i] + w_min * min_ints[i]. ints hold the integer scale where there is one.

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])


def half(raw):
    return F32(np.frombuffer(raw.tobytes(), "<f2")[0])


def nibbles(raw):
    raw = raw.astype(int)
    return np.concatenate([raw % 16, raw // 16])


def bits(raw):
    return np.array([(int(byte) >> i) & 1 for byte in raw for i in range(8)])


def q8_0(raw):
    yield half(raw[:2]), raw[2:].view(np.int8).astype(int), None, None


def q4_0(raw):
    yield half(raw[:2]), nibbles(raw[2:]) - 8, None, None


def q4_1(raw):
    yield half(raw[:2]), nibbles(raw[4:]), half(raw[2:4]), np.ones(32, int)


def q5_0(raw):
    yield half(raw[:2]), nibbles(raw[6:]) + 16 * bits(raw[2:6]) - 16, None, None


def q5_1(raw):
    yield half(raw[:2]), nibbles(raw[8:]) + 16 * bits(raw[4:8]), half(raw[2:4]), np.ones(32, int)


def iq4_nl(raw):
    yield half(raw[:2]), IQ4[nibbles(raw[2:])], None, None


def mxfp4(raw):
    yield F32(2.0 ** (int(raw[0]) - 128)), E2M1_DOUBLED[nibbles(raw[1:])], None, None


def parts_of_32(d, ints, dmin=None, min_ints=None):
    for i in range(0, 256, 32):
        if dmin is None:
            yield d, ints[i:i + 32], None, None
        else:
            yield d, ints[i:i + 32], -dmin, min_ints[i:i + 32]


def q2_k(raw):
    scales, qs = raw[:16].astype(int), raw[16:80].astype(int)
    ints, min_ints = np.zeros(256, int), np.zeros(256, int)
    for s in range(16):
        for l in range(16):
            byte = qs[32 * (s // 8) + 16 * (s % 2) + l]
            ints[16 * s + l] = (scales[s] & 15) * ((byte >> 2 * ((s % 8) // 2)) & 3)
            min_ints[16 * s + l] = scales[s] >> 4
    return parts_of_32(half(raw[80:82]), ints, half(raw[82:84]), min_ints)


def q3_k(raw):
    hmask, qs, scales = raw[:32].astype(int), raw[32:96].astype(int), raw[96:108].astype(int)
    ints = np.zeros(256, int)
    for s in range(16):
        low = scales[s] & 15 if s < 8 else scales[s - 8] >> 4
        scale = (low | ((scales[8 + s % 4] >> 2 * (s // 4)) & 3) << 4) - 32
        for l in range(16):
            n, shift = s // 8, 2 * ((s % 8) // 2)
            code = (qs[32 * n + 16 * (s % 2) + l] >> shift) & 3
            if not (hmask[16 * (s % 2) + l] >> (4 * n + shift // 2)) & 1:
                code -= 4
            ints[16 * s + l] = scale * code
    return parts_of_32(half(raw[108:110]), ints)


def six_bit_scales(scales):
    for s in range(8):
        if s < 4:
            yield scales[s] & 63, scales[s + 4] & 63
        else:
            yield ((scales[s + 4] & 15) | (scales[s - 4] >> 6) << 4,
                   scales[s + 4] >> 4 | (scales[s] >> 6) << 4)


def q45_k(raw, qh, qs):
    ints, min_ints = np.zeros(256, int), np.zeros(256, int)
    for s, (scale, minimum) in enumerate(six_bit_scales(raw[4:16].astype(int))):
        for l in range(32):
            byte = qs[32 * (s // 2) + l]
            code = byte >> 4 if s % 2 else byte & 15
            if qh is not None:
                code += 16 * ((qh[l] >> s) & 1)
            ints[32 * s + l], min_ints[32 * s + l] = scale * code, minimum
    return parts_of_32(half(raw[:2]), ints, half(raw[2:4]), min_ints)


def q4_k(raw):
    return q45_k(raw, None, raw[16:].astype(int))


def q5_k(raw):
    return q45_k(raw, raw[16:48].astype(int), raw[48:].astype(int))


def q6_k(raw):
    ints = np.zeros(256, int)
    all_scales = raw[192:208].view(np.int8).astype(int)
    for n in range(2):
        ql, qh = raw[64 * n:64 * n + 64].astype(int), raw[128 + 32 * n:160 + 32 * n].astype(int)
        scales = all_scales[8 * n:8 * n + 8]
        for l in range(32):
            codes = ((ql[l] & 15) | (qh[l] & 3) << 4, (ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4,
                     ql[l] >> 4 | (qh[l] >> 4 & 3) << 4, ql[l + 32] >> 4 | (qh[l] >> 6 & 3) << 4)
            for k in range(4):
                ints[128 * n + 32 * k + l] = scales[l // 16 + 2 * k] * (codes[k] - 32)
    return parts_of_32(half(raw[208:210]), ints)


def iq4_xs(raw):
    scales_high = int(raw[2]) | int(raw[3]) << 8
    ints = []
    for b in range(8):
        low = int(raw[4 + b // 2]) >> 4 * (b & 1) & 15
        scale = (low | (scales_high >> 2 * b & 3) << 4) - 32
        ints.append(scale * IQ4[nibbles(raw[8 + 16 * b:24 + 16 * b])])
    return parts_of_32(half(raw[:2]), np.concatenate(ints))


BLOCKS = {  # bytes and decoder
    "Q8_0": (34, q8_0), "Q4_0": (18, q4_0), "Q4_1": (20, q4_1), "Q5_0": (22, q5_0),
    "Q5_1": (24, q5_1), "IQ4_NL": (18, iq4_nl), "MXFP4": (17, mxfp4), "Q2_K": (84, q2_k),
    "Q3_K": (110, q3_k), "Q4_K": (144, q4_k), "Q5_K": (176, q5_k), "Q6_K": (210, q6_k),
    "IQ4_XS": (136, iq4_xs),
}


# ---- projections ----

def dot_q8(dtype, raw, q, d):
    size, decode = BLOCKS[dtype]
    parts = [part for i in range(0, len(raw), size) for part in decode(raw[i:i + size])]
    q = q.astype(int).reshape(-1, 32)
    total = F32(0)
    for first in range(0, len(parts), 8):
        seg = F32(0)
        for b in range(first, min(first + 8, len(parts))):
            w, ints, w_min, min_ints = parts[b]
            seg = fma(w * d[b], F32(np.dot(ints, q[b])), seg)
            if w_min is not None:
                seg = fma(w_min * d[b], F32(np.dot(min_ints, q[b])), seg)
        total = total + seg
    return F32(total)


def dot_float(dtype, raw, x):
    if dtype == "F32":
        w = raw.view("<f4")
    elif dtype == "F16":
        w = raw.view("<f2").astype(F32)
    else:
        w = (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(F32)
    total = F32(0)
    for i in range(0, len(x), 256):
        seg = F32(0)
        for k in range(i, min(i + 256, len(x)), 32):
            block = F32(0)
            for j in range(k, min(k + 32, len(x))):
                block = fma(w[j], x[j], block)
            seg = seg + block
        total = total + seg
    return F32(total)


# ---- norms ----

def lane_sum(term, n):
    """Sum over 16 lanes; term(k, lanes) adds elements k, k + 1, ... to the lanes it is given."""
    lanes = np.zeros(16, F32)
    for k in range(0, n, 16):
        m = min(16, n - k)
        lanes[:m] = term(slice(k, k + m), lanes[:m])
    for width in (8, 4, 2, 1):
        lanes = lanes[:width] + lanes[width:]
    return lanes[0]


def sum_squares(x):
    return lane_sum(lambda at, lanes: fma(x[at], x[at], lanes), len(x))


def rms_norm(x, w, eps):
    r = F32(1) / np.sqrt(sum_squares(x) / F32(len(x)) + eps)
    return (x * r) * w


def l2_norm(x, scale):
    r = F32(1) / np.sqrt(sum_squares(x) + F32(1e-6))
    return (x * r) * scale


# ---- gated delta rule ----

def flush(x):
    return np.where(np.abs(x) < F32(2.0**-100), F32(0), x)


def dot128(a, b):
    """Sum over the last axis, ascending."""
    total = np.zeros(np.broadcast(a, b).shape[:-1], F32)
    for i in range(128):
        total = fma(a[..., i], b[..., i], total)
    return total


def gdn_rows(begin, S, k, u, g, q, v, beta):
    """Rows begin, begin + 1, ... of a chunk; S is [key][value], u the update rows before."""
    u, out = list(u), []
    total, d = F32(0), []
    for i in range(len(k)):
        total = total + g[i]
        d = [F32(x + g[i]) for x in d] + [F32(0)]
        if i < begin:
            continue
        row = i - begin
        Sk, Sq = dot128(S.T, k[i]), dot128(S.T, q[row])
        kk, qk = dot128(k[:i + 1], k[i]), dot128(k[:i + 1], q[row])
        e, decays = exp(total)[0], exp(np.array(d, F32))
        r = fma(-e, Sk, v[row])
        for j in range(i):
            r = fma(-(decays[j] * kk[j]), u[j], r)
        u.append(flush(beta[row] * r))
        o = e * Sq
        for j in range(i + 1):
            o = fma(decays[j] * qk[j], u[j], o)
        out.append(o)
    return np.array(u[begin:], F32), np.array(out, F32)


def gdn_border(S, k, u, g):
    total, d = F32(0), []
    for i in range(len(k)):
        total = total + g[i]
        d = [F32(x + g[i]) for x in d] + [F32(0)]
    decays = exp(np.array(d, F32))
    S = exp(total)[0] * S
    for j in range(len(k)):
        S = fma((decays[j] * k[j])[:, None], u[j][None, :], S)
    return flush(S)


# ---- attention ----

def sum_lanes(p):
    return lane_sum(lambda at, lanes: lanes + p[at], len(p))


def attend_block(q, k, v):
    scores = np.zeros(len(k), F32)
    for i in range(256):
        scores = fma(q[i], k[:, i], scores)
    scores = scores * F32(0.0625)
    m = np.max(scores)
    p = exp(scores - m)
    o = np.zeros(256, F32)
    for j in range(len(k)):
        o = fma(p[j], v[j], o)
    return m, sum_lanes(p), o


def attention(q, k, v):
    m, l, o = attend_block(q, k[:256], v[:256])
    for first in range(256, len(k), 256):
        m_b, l_b, o_b = attend_block(q, k[first:first + 256], v[first:first + 256])
        larger = np.maximum(m, m_b)
        x, y = exp(m - larger)[0], exp(m_b - larger)[0]
        m, l, o = larger, fma(l, x, l_b * y), fma(o, x, o_b * y)
    return o / l


# ---- choice of experts ----

def route(logits, top_k):
    p = exp(logits - np.max(logits))
    p = p / sum_lanes(p)
    ids = sorted(range(len(p)), key=lambda i: (-p[i], i))[:top_k]
    total = F32(0)
    for i in ids:
        total = total + p[i]
    return np.array(ids, np.uint32), p[ids] / max(total, F32(2.0**-14))


# ---- the operations of IN ----

def op_rope(x, c, s):
    a, b = np.split(x, 2)
    return fma(a, c, -(b * s)), fma(b, c, a * s)


def op_conv(present, w, rows):
    total = np.zeros(len(w) // 4, F32)
    for j in range(4):
        row = rows.reshape(4, -1)[j] if present[j] == "1" else F32(0)
        total = fma(w[j::4], row, total)
    return silu(total)


def op_gdn_rows(begin, S, k, u, g, q, v, beta):
    return gdn_rows(int(begin), S.reshape(128, 128), k.reshape(-1, 128), u.reshape(-1, 128), g,
                    q.reshape(-1, 128), v.reshape(-1, 128), beta)


def op_attention(kv_type, q, k, v):
    k, v = k.reshape(-1, 256), v.reshape(-1, 256)
    if kv_type == "f16":
        k, v = k.astype(np.float16).astype(F32), v.astype(np.float16).astype(F32)
    return attention(q, k, v)


def op_rope_angles(position, scale, inv_freq):
    sine, cosine = sincos(F32(int(position)) * inv_freq)
    return cosine * h32(scale), sine * h32(scale)


OPS = {
    "exp": exp, "log": log, "log1p": log1p, "sincos": sincos,
    "quantise": quantise, "dot_q8": dot_q8, "dot_float": dot_float,
    "rms_norm": lambda eps, x, w: rms_norm(x, w, h32(eps)),
    "l2_norm": lambda scale, x: l2_norm(x, h32(scale)),
    "swiglu": lambda gate, up: silu(gate) * up,
    "mul_sigmoid": lambda z, y: y * sigmoid(z),
    "axpy": lambda w, x, y: fma(h32(w), x, y),
    "gates": lambda a, b, coef, dt: (coef * softplus(a + dt), sigmoid(b)),
    "rope_angles": op_rope_angles, "rope": op_rope, "conv": op_conv,
    "gdn_rows": op_gdn_rows,
    "gdn_border": lambda S, k, u, g: gdn_border(S.reshape(128, 128), k.reshape(-1, 128),
                                                u.reshape(-1, 128), g),
    "attention": op_attention,
    "route": lambda top_k, logits: route(logits, int(top_k)),
}


def main():
    with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb") as sink:
        while line := source.readline().decode("ascii").split():
            name, arguments = line[1], line[2:]
            while (header := source.readline().decode("ascii").split()) != ["end"]:
                dtype, count = np.dtype("<" + header[0]), int(header[1])
                arguments.append(np.frombuffer(source.read(dtype.itemsize * count), dtype))
            with np.errstate(all="ignore"):
                results = OPS[name](*arguments)
            for result in results if isinstance(results, tuple) else (results,):
                sink.write(np.ascontiguousarray(result).tobytes())


if __name__ == "__main__":
    main()
