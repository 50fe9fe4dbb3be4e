"""`python -m loadtest.webdataset_shuffle SHARDS PATTERN`: the usual WebDataset script. Read, shuffle in memory, write shards.

Prints the number of samples and the seconds as JSON.
"""

from __future__ import annotations

import json
import sys
import time

import webdataset


def main() -> int:
    shards, pattern = sys.argv[1:]
    begin = time.monotonic()
    count = 0
    dataset = webdataset.WebDataset(shards, shardshuffle=False).shuffle(5000, initial=5000)
    with webdataset.ShardWriter(pattern, maxcount=5000, verbose=0) as writer:
        for sample in dataset:
            writer.write({name: value for name, value in sample.items() if not name.startswith("__") or name == "__key__"})
            count += 1
    print(json.dumps({"samples": count, "seconds": time.monotonic() - begin}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
