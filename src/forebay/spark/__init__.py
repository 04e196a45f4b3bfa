"""The data pipeline on Spark: the data source `forebay`, the tables, the audit, the generator, the report, the fleet.

Nothing here is imported by the rest of Forebay, and `pyspark` comes with the extra `forebay[spark]`.
"""
