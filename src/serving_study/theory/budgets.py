"""How many requests fit a host beside a model."""

from collections.abc import Sequence

import pandas

from ..errors import ModelError
from ..hardware import ceilings
from ..models import shapes
from . import capacity


def budget(
    model: str,
    host: str,
    utilization: float = 0.9,
    *,
    version: str = capacity.Deployment.version,
    max_model_len: int = 4096,
    element_bytes: int | None = None,
) -> capacity.Capacity:
    """The memory of one GPU of a host, with one rank a GPU and at most 128 sequences."""
    place, shape = ceilings.of_host(host), shapes.load(model)
    return capacity.predict(
        capacity.Deployment(
            shape,
            place.gpu,
            tp=ranks(shape, place.count),
            utilization=utilization,
            max_model_len=max_model_len,
            max_num_seqs=128,
            kv_element_bytes=element_bytes,
            version=version,
        )
    )


def ranks(shape: shapes.Shape, gpus: int) -> int:
    """The highest power of two of ranks, up to `gpus`, over which the heads divide."""
    fitting = [
        tp
        for tp in (2**power for power in range(gpus.bit_length()))
        if tp <= gpus
        and shape.heads % tp == 0
        and (shape.latent or max(tp, shape.kv_heads) % min(tp, shape.kv_heads) == 0)
    ]
    return max(fitting)


def fits(
    models: Sequence[str],
    hosts: Sequence[str],
    lengths: Sequence[int],
    utilization: float = 0.9,
    element_bytes: int | None = None,
) -> pandas.DataFrame:
    """One row a model and host: `tp`, `weights_gib` and `kv_gib` by GPU, and for each length a column with the requests
    that fit; or a `reason` why none does.
    """
    rows = []
    for name in models:
        shape = shapes.load(name)
        for host in hosts:
            row = {"model": name, "host": host, "tp": ranks(shape, ceilings.of_host(host).count)}
            try:
                budget_by_length = {
                    length: budget(name, host, utilization, max_model_len=length, element_bytes=element_bytes)
                    for length in lengths
                }
            except ModelError as error:
                rows.append(row | {"reason": error.what})
                continue
            first = budget_by_length[lengths[0]]
            row |= {"weights_gib": first.weights_gib, "kv_gib": first.kv_gib}
            if first.kv_gib <= 0:
                rows.append(row | {"reason": "out of memory"})
                continue
            rows.append(row | {length: each.max_concurrency for length, each in budget_by_length.items()})
    return pandas.DataFrame(rows).reindex(columns=["model", "host", "tp", "weights_gib", "kv_gib", *lengths, "reason"])
