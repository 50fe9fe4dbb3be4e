"""The stock WebDataset, which reads all shards until it is told to stop: alternately by `pipe:curl …` and by its own `gopen`.

    python -m failures.webreader FOLDER URL…

Ends when FOLDER/stop is there, and prints what it has read. FOLDER/samples.json has the digest of each sample by its key; curls
write what they do to FOLDER/curl.log.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import webdataset

from failures.digests import digest_of

PIPE: Final = "pipe:curl -s -v -f -L --retry 30 --retry-delay 1 --retry-connrefused {url} 2>>{log}"


def main() -> None:
    folder, urls = Path(sys.argv[1]), sys.argv[2:]
    wanted = json.loads((folder / "samples.json").read_text())
    log = shlex.quote(str(folder / "curl.log"))
    ways = {"pipe:curl": [PIPE.format(url=shlex.quote(url), log=log) for url in urls], "gopen": urls}
    passes, problems = Counter[str](), list[str]()
    while not (folder / "stop").exists():
        way = min(ways, key=lambda way: passes[way])
        samples = [(sample["__key__"], digest_of(sample)) for sample in webdataset.WebDataset(ways[way], shardshuffle=False)]
        passes[way] += 1
        found = dict(samples)
        if found != wanted or len(samples) != len(wanted):
            wrong = sum(found.get(key) != digest for key, digest in wanted.items())
            problems.append(f"WebDataset by {way} read {len(samples)} samples, {wrong} of {len(wanted)} wrong or missing")
    print(json.dumps({"passes": passes, "problems": problems}))


if __name__ == "__main__":
    main()
