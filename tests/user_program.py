"""A program as a user writes it. tests/unit/test_user_types.py has mypy look at it: it complains in the lines that say so, and
in no other."""

from pathlib import Path

import dfc.inputs.filters as df
from dfc.client import AsyncClient, Client
from dfc.inputs import gopen, numpy, tensorflow
from dfc.inputs.loader import Loader
from dfc.inputs.mapstyle import MapDataset
from dfc.inputs.mixing import Mixture
from dfc.inputs.torch import DataLoader, ShardDataset
from dfc.inputs.writers import ShardWriter

URL = "http://127.0.0.1:8080/imagenet-@000147.tar"


def good(directory: Path) -> None:
    plain = Loader(URL, 256, decode="rgb8", fields=["jpg;png", "cls"], shuffle="global", seed=3)
    batches: int = len(plain)
    dataset = ShardDataset([URL], 256, rank=0, ranks=2, equal="drop", cache_dir=str(directory), handler="skip")
    for batch in DataLoader(dataset, num_workers=4, pin_memory=True, prefetch_factor=2, reuse_memory=False):
        print(batch, batches)
    threaded = numpy.Loader(URL, 16, threads=2, transform=lambda sample: sample["jpg"])
    tensorflow.dataset(threaded, epochs=None, as_tuple=["jpg", "cls"])
    tensorflow.dataset(URL, 16, maxerrs=3, streams=2)
    for sample in gopen.sharditerator_once(URL, fields="jpg cls", readers=1):
        print(sample["jpg"])
    df.compose(df.shuffle(1000), df.rename(image="jpg;png"), df.batch(20))(gopen.sharditerator(URL, 90))
    Mixture([plain], [1.0], 8, collate=len)
    print(MapDataset(URL, only=["jpg"])[3])
    with Client("http://127.0.0.1:8080", token="t", retries=2) as client:
        print(client.put("b", "x.tar", directory / "x.tar").checksum, client.get("b", "x.tar", start=3).hex())
    with ShardWriter("http://127.0.0.1:8080/b/train-%06d.tar", maxcount=100) as writer:
        writer.write({"__key__": "a", "txt": "text"})


async def waiting(client: AsyncClient) -> bytes:
    print((await client.cluster_status()).health, [job.state async for job in client.jobs.list()])
    return await client.get("b", "x", length=3)


def misspelt() -> None:
    Loader(URL, 256, fieldz=["jpg"])  # E: call-arg
    ShardDataset(URL, 256, suffle=True)  # E: call-arg
    ShardDataset(URL, 256, decoded="rgb8")  # E: call-arg
    numpy.Loader(URL, 256, thread=3)  # E: call-arg
    tensorflow.dataset(URL, 256, epoch_batch=3)  # E: call-arg
    gopen.sharditerator(URL, epoch=3)  # E: call-arg
    gopen.sharditerator_once(URL, reader=3)  # E: call-arg
    MapDataset(URL, decoder="rgb8")  # E: call-arg
    Client("http://127.0.0.1:8080", tokens="t")  # E: call-arg


def wrong(dataset: ShardDataset, client: Client) -> None:
    ShardDataset(URL, 256, seed="3")  # E: arg-type
    ShardDataset(URL, 256, shuffle="all")  # E: arg-type
    ShardDataset(URL, 256, handler="ignore")  # E: arg-type
    ShardDataset(URL, 256, equal="pat")  # E: arg-type
    numpy.Loader(URL, 256, streams="2")  # E: arg-type
    tensorflow.dataset(URL, 256, transform=3)  # E: arg-type
    gopen.sharditerator_once(URL, readers="1")  # E: arg-type
    DataLoader(dataset, shuffle=True)  # E: arg-type
    DataLoader(dataset, batch_size=3)  # E: arg-type
    client.put("b", "x", 3)  # E: arg-type
    print(client.get("b", "x").checksum)  # E: attr-defined
    length: str = client.get("b", "x")  # E: assignment
    print(length)
