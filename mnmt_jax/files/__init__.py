"""Files as such: written whole or not at all, in folders and buckets; whose fault trouble is."""
