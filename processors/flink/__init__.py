"""The same operators on Flink: shards of keys as keyed functions, time from beats in the input."""
