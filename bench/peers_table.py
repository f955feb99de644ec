#!/usr/bin/env python3
"""The table of bench/peers.sh: medians and ranges of both programs, and the ratio round by round.

usage: bench/peers_table.py FOLDER       with sluice-N.json and llama-N.json for N = 1, 2, ...,
                                         and llama-batch-N.json where sequences ran together
"""
import json
import statistics
import sys
from pathlib import Path


def sluice_rows(path):
    """{test: tokens a second} and what the file says beside them."""
    data = json.loads(path.read_text())
    rows = {r["test"]: r["median"] for r in data["rows"] if r["unit"] == "tok/s"}
    shares = {r["test"]: r["share_of_limit"] for r in data["rows"]}
    return rows, shares, data


def peer_name(entry):
    """The name that sluice gives to the same test."""
    depth = f" @{entry['n_depth']}" if entry.get("n_depth") else ""
    if entry["n_prompt"] and not entry["n_gen"]:
        return f"pp{entry['n_prompt']}{depth}"
    return f"tg{entry['n_gen']}{depth}"


def peer_rows(path):
    rows = {peer_name(e): e["avg_ts"] for e in json.loads(path.read_text())}
    batches = path.with_name(path.name.replace("llama-", "llama-batch-"))
    text = batches.read_text() if batches.exists() else ""
    for entry in map(json.loads, filter(None, text.splitlines())):
        rows[f"tg{entry['tg']} x{entry['pl']}"] = entry["speed_tg"]
    return rows


def spread(values):
    return f"{statistics.median(values):9.2f} ({min(values):.2f} .. {max(values):.2f})"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    numbers = sorted(int(p.stem.split("-")[1]) for p in folder.glob("sluice-*.json"))
    rounds = []
    for n in numbers:
        peer = folder / f"llama-{n}.json"
        if peer.exists():
            rounds.append((sluice_rows(folder / f"sluice-{n}.json"), peer_rows(peer)))
    if not rounds:
        sys.exit(f"{folder} holds no complete round")

    first = rounds[0][0][2]
    print(f"{first['model']['name']}, {first['model']['type']}, "
          f"{first['arms'][0]['threads']} threads, {first['arms'][0]['isa']}, "
          f"{first['machine']['cpu']}, {first['time']}, {len(rounds)} rounds")
    for doubt in sorted({d for (_, _, data), _ in rounds for d in data["machine"]["doubts"]}):
        print(f"doubtful: {doubt}")
    print(f"{'test':14} {'sluice tok/s':>30} {'llama.cpp tok/s':>30} {'ratio':>24}  of the limit")
    for test in dict.fromkeys(test for (ours, _, _), _ in rounds for test in ours):
        pairs = [(ours[test], theirs[test], shares[test])
                 for (ours, shares, _), theirs in rounds if test in ours and test in theirs]
        if not pairs:
            continue
        ratios = [a / b for a, b, _ in pairs]
        shares = [s for _, _, s in pairs if s is not None]
        share = f"{100 * statistics.median(shares):.0f} %" if shares else "-"
        print(f"{test:14} {spread([a for a, _, _ in pairs]):>30} "
              f"{spread([b for _, b, _ in pairs]):>30} {spread(ratios):>24}  {share}")


main()
