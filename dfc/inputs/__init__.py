"""The API for training scripts: streams of samples, filters, loaders for frameworks, shard writers and a filesystem.

    from dfc.inputs import gopen
    import dfc.inputs.filters as df

    dataset = gopen.sharditerator("http://nvdata/imagenet-@001000.tgz")
    pipeline = df.compose(df.shuffle(1000), df.batch(20))
    for batch in pipeline(dataset): train_batch(batch["png"], batch["cls"])

Nothing here imports a framework, except the modules that are named after one. docs/inputs.md is the reference.
"""
