"""Prints the bits of float64 values and what Python's repr makes of them, one pair a line.

usage: python3 tests/data/make_floats.py | xz -9e > tests/data/python-floats.txt.xz
"""
import random
import struct

random.seed(1)


def value(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def bits(x):
    return struct.unpack("<Q", struct.pack("<d", x))[0]


cases = set()
# Powers of two, where the distance to the neighbours is not the same on both sides.
for e in range(-1074, 1024):
    cases.add(bits(2.0**e))
# Powers of ten, where the layout changes, and their neighbours.
for e in range(-323, 309):
    for near in (-1, 0, 1):
        cases.add(bits(float(f"1e{e}")) + near)
for e in range(1, 18):
    cases.update(bits(float(random.randrange(10**e))) for _ in range(10))
    cases.update(bits(random.randrange(10**e) / 10 ** random.randrange(20)) for _ in range(20))
cases.update(random.getrandbits(64) for _ in range(800))
cases.update(random.getrandbits(52) for _ in range(100))  # denormals
cases.update(bits(float.fromhex(f"0x1.{random.getrandbits(23):06x}p{random.randrange(-126, 127)}"))
             for _ in range(200))
for b in sorted(cases):
    x = value(b)
    if x == x and abs(x) != float("inf"):
        print(f"{b:016x} {x!r}")
