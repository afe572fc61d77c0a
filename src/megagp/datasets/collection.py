"""Which sets there are, how large, and the checksums of their files."""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    """The size of a set, the names of its CSV parts, and whether it can be downloaded."""

    n: int
    d: int
    parts: tuple[str, ...] = ("data.csv.gz",)
    upstream: bool = True


DATASETS = {
    "pol": Facts(15_000, 26),
    "elevators": Facts(16_599, 18),
    "bike": Facts(17_379, 17),
    "kin40k": Facts(40_000, 8),
    "protein": Facts(45_730, 9),
    "keggdirected": Facts(48_827, 20),
    "keggundirected": Facts(63_608, 27),
    "slice": Facts(53_500, 385),
    "3droad": Facts(434_874, 3),
    "song": Facts(515_345, 90, ("data.csv.gz", "data1.csv.gz")),
    "buzz": Facts(583_250, 77),
    "houseelectric": Facts(2_049_280, 11),
    # Elevation by longitude and latitude, and two plants' sensors with lags: sizes like those of
    # 3droad, song and slice, under names of their own.
    "gebco_kg_2m": Facts(2_000_000, 2, upstream=False),
    "condat_lags": Facts(515_345, 90, upstream=False),
    "fhw_lags": Facts(53_500, 384, upstream=False),
}

# Of the files that are known. There is none for the downloads of slice, 3droad, song, buzz and
# houseelectric (the sum below is that of the same data as arrays): of those the size is checked.
SHA256 = {
    "pol/data.csv.gz": "1c16126352954571e78f52d5a9d1b947a38655885d7cadd9407a4c9615fe4e04",
    "elevators/data.csv.gz": "e39bc18a80ec3611e4fd76d0f86ee377e96ba21b568b9997576d538dafe56b7b",
    "bike/data.csv.gz": "411f76ae426c0e348a2629dcf6b3b29102c7db465eae780a3454c39db1dfac4f",
    "kin40k/data.csv.gz": "9bee7f2a9f39aa61a015f239378368601fb3978c5bb9a96433e88a55d40883ba",
    "protein/data.csv.gz": "f709d0107c3ee90ab019b9e5d77fc2ae182158958cb70b1903236a51334fd01b",
    "keggdirected/data.csv.gz": "51b7bb56e3f3eae36273cdd5a549c042bdf0ec10948a6f8e6b01a1d6912212cd",
    "keggundirected/data.csv.gz": (
        "117419270e50f581df18bf996ffc8b6bf1bb76c9f3640331ac9d6e64cff63d4e"
    ),
    "houseelectric/data.npz": "0a33982e685ebd3f8ec9485f0dca6fe849e1dd69e2d92d39adcb08a31f4e5a4f",
    "gebco_kg_2m/data.npz": "43e5f923fa6bbb2486ca85f56a9dd78fa85fbd9dfb61f2317b8ce40132df006f",
    "condat_lags/data.npz": "03189791e3be5a90b9739fb484b3573f6522c4ded446e92e68dfe7c9b7abc5a8",
    "fhw_lags/data.npz": "9464b02ffd91ca003dcca2fdbcf932babed44169582a9caeee620d786dc7a357",
}
