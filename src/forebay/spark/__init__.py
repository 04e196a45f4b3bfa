"""The data pipeline on Spark: the data source `forebay`, the tables, the audit, the generator, the report, the fleet.

Nothing here is imported by the rest of Forebay, and `pyspark` comes with the extra `forebay[spark]`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.spark.lake_reader import create_views, read_table

__all__ = ["create_views", "read_table"]


def __getattr__(name: str) -> Any:
    """Imported on first use: commands that only read a lake need no Spark."""
    if name in __all__:
        from forebay.spark import lake_reader

        return getattr(lake_reader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
