"""One row of each published table, end to end at the scale `tiny` (scripts/test_tables.sh)."""
