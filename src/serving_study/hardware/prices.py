"""The price of an instance hour: given, from the AWS Price List, or from `data/hardware/prices.csv`; always dated.

Prices are for Linux, on demand, shared tenancy, in US dollars. What can mislead: they change (P4 and P5 fell by up to
44 % in June 2025) and differ between regions; spot prices and reservations are lower; disks and traffic are extra. An
instance is rented whole, so the cost of a token counts all of its GPUs, used or not. A price that is unknown stays
unknown: no other region's is taken for it.

    >>> from serving_study.hardware import prices
    >>> prices.known("g6.xlarge").usd_per_hour, prices.known("h200x1")
    (0.8048, None)
"""

import csv
import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from .. import files, paths
from ..errors import HostError, ParameterError, PriceError, PriceListError, StoreError, near
from . import ceilings

TABLE = paths.DATA / "hardware" / "prices.csv"
REGION = "us-east-1"
ENDPOINTS = ("us-east-1", "eu-central-1", "ap-south-1")  # regions with a price endpoint; each knows all regions' prices
FILTERS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
    "licenseModel": "No License required",
}
HOURLY = ("Hrs", "Hours", "Hour")
SINGLE = (
    "p4d",
    "p4de",
    "p5en",
    "p6-b200",
)  # families that come in one size, the table's (AWS's pages of instance types P4, P5 and P6, 2026)
GIVE = "your own price: --price USD_PER_HOUR of predict and advise"
TIMEOUTS = {"connect_timeout": 3, "read_timeout": 5}  # seconds; of two attempts


@dataclass(frozen=True)
class Price:
    """The price of an hour of `instance`.

    `region` and `date` (of the price list, ISO) are None for a given price. `parts` is how many such shares the rented
    instance has; 1 for a whole instance."""

    instance: str
    usd_per_hour: float
    source: str
    region: str | None = None
    date: str | None = None
    parts: float = 1.0

    @property
    def rented(self) -> "Price":
        """The price of the whole instance, which has to be rented."""
        return replace(self, usd_per_hour=self.usd_per_hour * self.parts, parts=1.0)

    def __str__(self) -> str:
        when = f" in {self.region} on {self.date}" if self.date else ""
        return f"{self.usd_per_hour:.4g} USD an hour for {self.instance}{when} ({self.source})"

    def as_dict(self) -> dict:
        """Its fields; `parts` only of a share."""
        return {name: value for name, value in asdict(self).items() if name != "parts" or value != 1}

    def per_million(self, tokens_per_second: float) -> float:
        """US dollars for a million tokens at a rate."""
        return self.usd_per_hour / 3600 / tokens_per_second * 1e6

    def per_thousand(self, requests_per_second: float) -> float:
        """US dollars for a thousand requests at a rate."""
        return self.usd_per_hour / 3600 / requests_per_second * 1e3


@dataclass(frozen=True)
class Offer:
    """An instance type and its price, or `why` there is none.

    `gpu` and `gpus` are None for a type that is not in the table, `memory_gib` is of one GPU.
    """

    instance: str
    gpu: str | None
    gpus: int | None
    memory_gib: float | None
    price: Price | None
    why: str | None = None

    @property
    def usd_per_gpu_hour(self) -> float | None:
        return self.price.usd_per_hour / self.gpus if self.price and self.gpus else None

    def as_dict(self) -> dict:
        price = self.price.as_dict() if self.price else dict.fromkeys(("usd_per_hour", "source", "region", "date"))
        return {
            "instance": self.instance,
            "gpu": self.gpu,
            "gpus": self.gpus,
            "memory_gib": self.memory_gib,
            "usd_per_hour": price["usd_per_hour"],
            "usd_per_gpu_hour": self.usd_per_gpu_hour,
            "region": price["region"],
            "date": price["date"],
            "source": price["source"],
            "why": self.why,
        }


def given(host: str, usd_per_hour: float) -> Price:
    """A price that the caller knows. Raises ParameterError for one that is not above 0."""
    if not 0 < usd_per_hour < float("inf"):
        raise ParameterError("--price cannot be used", value=usd_per_hour, allowed="more than 0 US dollars an hour")
    return Price(host, usd_per_hour, "given")


def instance_of(host: str) -> str | None:
    """The instance type that a host is, or whose GPUs it has (`l4x1` is g6.xlarge); None where the table has none."""
    if host in ceilings.instances():
        return host
    try:
        place = ceilings.of_host(host)
    except HostError:
        return None
    return next(
        (
            known.name
            for known in ceilings.instances().values()
            if known.gpu == place.gpu and known.count == place.count
        ),
        None,
    )


def named(host: str) -> str:
    """The instance type whose price is asked: `instance_of`, or a well-formed name that the table lacks (`g6.2xlarge`).

    Raises PriceError for a size that its family does not have, for a profile without an instance type, and for any
    other name; the error lists types with such GPUs, or similar names."""
    if instance := instance_of(host):
        return instance
    family, dot, _ = host.partition(".")
    if family in SINGLE and dot:
        [only] = [known for known in ceilings.instances().values() if known.name.startswith(f"{family}.")]
        raise PriceError(
            f"no such instance type ({family} comes in one size)",
            value=host,
            allowed=_related([only]),
            next=f"serving-study price {only.name}",
        )
    if re.fullmatch(r"[a-z][a-z0-9-]*\.(\d*x?large|small|medium|micro|nano|metal(-\d+xl)?)", host):
        return host
    match = re.fullmatch(r"(.+?)(-\d+)?x\d+", host)
    same = [known for known in ceilings.instances().values() if match and _stem(known) == match[1]]
    if same:
        raise PriceError(
            "no instance type for this host, so no price to fetch",
            value=host,
            allowed=_related(same),
            next=f"serving-study price {same[-1].name}, or {GIVE}",
        )
    raise PriceError(
        "no instance type for this host, so no price to fetch",
        value=host,
        allowed=", ".join(ceilings.instances()),
        next=near(host, ceilings.instances()) or GIVE,
    )


def _related(some: Sequence[ceilings.Instance]) -> str:
    """These instance types in words, with those that have the same GPU with another memory: P4d and P4de."""
    stems = {_stem(known) for known in some}
    others = [known for known in ceilings.instances().values() if _stem(known) in stems and known not in some]
    return "; ".join(
        f"{known.name} has {known.count} {known.gpu.name.upper()} ({known.gpu.memory_gib:.0f} GiB each)"
        for known in [*some, *others]
    )


def _stem(known: ceilings.Instance) -> str:
    return known.gpu.name.partition("-")[0]


def known(host: str, region: str = REGION) -> Price | None:
    """A host's newest price that was fetched earlier or is in the table; None where there is none."""
    return _known(instance_of(host), region)


def _known(instance: str | None, region: str) -> Price | None:
    prices = [price for price in (_kept(instance, region), table().get((instance, region))) if price]
    return max(prices, key=lambda price: price.date, default=None)


def share(host: str, region: str = REGION) -> Price | None:
    """A host's share of the price of a larger instance with the same GPUs (`h200x1` is an eighth of p5en.48xlarge);
    None without one. Nobody rents out that share: `source` says so.
    """
    try:
        place = ceilings.of_host(host)
    except HostError:
        return None
    larger = sorted(
        (known.count, known.name)
        for known in ceilings.instances().values()
        if known.gpu == place.gpu and known.count > place.count
    )
    for count, name in larger:
        if whole := known(name, region):
            return Price(
                host,
                whole.usd_per_hour * place.count / count,
                f"{place.count} of {count} GPUs of {name}, which is rented whole; {whole.source}",
                whole.region,
                whole.date,
                count / place.count,
            )
    return None


@functools.cache
def table() -> dict[tuple[str, str], Price]:
    """The prices that ship with the book, by instance type and region. Raises StoreError for a damaged table."""
    prices = {}
    with open(TABLE, encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            if (
                None in row
                or None in row.values()
                or not re.fullmatch(r"\d+(\.\d+)?", row["usd_per_hour"])
                or not re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"])
                or not row["source_url"]
            ):
                raise StoreError(
                    f"prices.csv, line {line}: unusable price",
                    value=",".join(map(str, row.values())),
                    allowed="instance, region, digits, YYYY-MM-DD, a source",
                    next=f"git diff {TABLE}",
                )
            prices[row["instance"], row["region"]] = Price(
                row["instance"], float(row["usd_per_hour"]), row["source_title"], row["region"], row["date"]
            )
    return prices


def offers(hosts: Sequence[str] = (), region: str = REGION, *, ask: bool = True) -> tuple[list[Offer], str | None]:
    """Instance types (of `hosts`, or all of the table) with their prices, and why AWS could not be asked (else None).

    Once AWS cannot be reached it is not asked again, and the newest known price is taken. A type that AWS does not
    offer in this region has no price. Raises PriceError for a host in `hosts` without a price."""
    host_offers, unreachable = [], None
    for instance in [named(host) for host in hosts] or ceilings.instances():
        price = why = None
        if ask and unreachable is None:
            try:
                price = fetch(instance, region)
            except PriceListError as error:
                unreachable = error
            except PriceError as error:
                why = error
        if price is None and why is None:
            price = _known(instance, region)
            why = None if price else _nothing(instance, region, unreachable)
        if hosts and why:
            raise why
        place = ceilings.instances().get(instance)
        host_offers.append(
            Offer(
                instance,
                place and place.gpu.name,
                place and place.count,
                place and place.gpu.memory_gib,
                price,
                str(why.what) if why else None,
            )
        )
    return host_offers, unreachable and unreachable.why


def _nothing(instance: str, region: str, unreachable: PriceListError | None) -> PriceError:
    """The error for an instance type without a known price in this region."""
    elsewhere = [region for name, region in table() if name == instance]
    family = [name for name in ceilings.instances() if name.partition(".")[0] == instance.partition(".")[0]]
    allowed = f"{instance} in {', '.join(elsewhere)}" if elsewhere else ", ".join(family or ceilings.instances())
    return PriceError(
        f"no price is known without AWS ({unreachable.why if unreachable else 'not asked: --offline'})",
        value=f"{instance} in {region}",
        allowed=f"without AWS: {allowed}",
        next=_near(instance, region)
        or (unreachable.next if unreachable else "the same command without --offline asks AWS"),
    )


def _near(instance: str, region: str) -> str | None:
    """Similar names, for an unknown instance type or region."""
    if instance not in ceilings.instances():
        return near(
            instance, [name for name in ceilings.instances() if name.partition(".")[0] == instance.partition(".")[0]]
        )
    return None if region in _regions() else near(region, _regions())


@functools.cache
def _regions() -> tuple[str, ...]:
    import boto3

    return tuple(boto3.Session().get_available_regions("ec2"))  # a file in botocore, no network


def fetch(host: str, region: str = REGION) -> Price:
    """Ask the AWS Price List, and keep the answer in the cache, where `known` finds it.

    Raises PriceListError without credentials, permission or network; PriceError without an instance type, and for an
    answer with no price or several."""
    instance = named(host)
    price = parse(_ask(instance, region), instance, region)

    files.write(_file(instance, region), price.as_dict())
    return price


def parse(answers: Iterable[str], instance: str, region: str) -> Price:
    """The price in the answer of `pricing:GetProducts`: `PriceList` entries, each a JSON document in a string.

    Left out are reservations (their hours may cost 0), capacity blocks (0), and products of another system, tenancy or
    licence. Raises PriceError for no price, and for several that differ."""
    date_by_usd, wanted = {}, FILTERS | {"instanceType": instance, "regionCode": region}
    try:
        for product in map(json.loads, answers):
            attributes = product["product"]["attributes"]
            if any(attributes.get(name, value) != value for name, value in wanted.items()):
                continue
            for term in product["terms"].get("OnDemand", {}).values():
                for dimension in term["priceDimensions"].values():
                    usd = float(dimension["pricePerUnit"].get("USD", 0))
                    if usd > 0 and dimension["unit"] in HOURLY:
                        date_by_usd.setdefault(usd, product.get("publicationDate") or term["effectiveDate"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PriceError(
            "the AWS Price List answered what cannot be read",
            value=f"{instance} in {region}: {type(error).__name__}: {error}",
            allowed="products with terms, offers and price dimensions (format aws_v1)",
            next=GIVE,
        ) from None
    if len(date_by_usd) != 1:
        what = "several on-demand prices" if date_by_usd else "no on-demand price"
        value = f"{instance} in {region}" + (
            f": {', '.join(f'{usd:g}' for usd in sorted(date_by_usd))} USD an hour" if date_by_usd else ""
        )
        raise PriceError(
            f"the AWS Price List has {what}",
            value=value,
            allowed="one for Linux, on demand, shared tenancy",
            next=_near(instance, region) or f"another --region, or {GIVE}",
        )
    [(usd, date)] = date_by_usd.items()
    return Price(instance, usd, "AWS Price List", region, date[:10])


def _ask(instance: str, region: str) -> list[str]:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    filters = FILTERS | {"instanceType": instance, "regionCode": region}
    config = Config(**TIMEOUTS, retries={"total_max_attempts": 2, "mode": "standard"})
    try:
        pages = (
            boto3.Session()
            .client("pricing", region_name=region if region in ENDPOINTS else ENDPOINTS[0], config=config)
            .get_paginator("get_products")
            .paginate(
                ServiceCode="AmazonEC2",
                Filters=[{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in filters.items()],
            )
        )
        return [text for page in pages for text in page["PriceList"]]
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise PriceListError(
            "a price was to be fetched, and there are no AWS credentials",
            why="there are no AWS credentials",
            value=str(error),
            allowed="credentials that may call pricing:GetProducts",
            next=f"aws configure sso, or {GIVE}",
        ) from None
    except ClientError as error:
        said = f"{error.response['Error']['Code']}: {error.response['Error']['Message']}"
        raise PriceListError(
            "the AWS Price List refused",
            why=f"it refused ({said})",
            value=said,
            allowed="credentials that may call pricing:GetProducts",
            next=f"aws sts get-caller-identity, or {GIVE}",
        ) from None
    except BotoCoreError as error:
        raise PriceListError(
            "the AWS Price List did not answer",
            why=f"it did not answer ({error})",
            value=str(error),
            allowed="a network that reaches it",
            next=f"the same where it can be reached, or {GIVE}",
        ) from None


def _file(instance: str, region: str):
    return paths.CACHE / "prices" / region / f"{instance}.json"


def _kept(instance: str | None, region: str) -> Price | None:
    file = _file(instance, region) if instance else None
    if file is None or not file.is_file():
        return None
    try:
        return Price(**json.loads(file.read_text()))
    except (json.JSONDecodeError, TypeError):
        raise StoreError(
            "a kept price cannot be read", value=file, allowed="what fetching wrote", next=f"rm {file}"
        ) from None
