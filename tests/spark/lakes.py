"""What the tests of lakes share."""

import re

from pyspark.sql import DataFrame


def plain(table: DataFrame) -> list[str]:
    """Rows to compare, but for sketches and their percentiles: merged in other steps they are near, not equal."""
    columns = [name for name in table.columns if not re.search(r"_(sketch|p\d\d)$", name)]
    return sorted(str(row) for row in table.select(*columns).collect())
