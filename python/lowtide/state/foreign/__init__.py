"""State dicts of other libraries' optimizers: bitsandbytes, torchao's low-bit optimizers, FlashOptim and the packages
schedulefree and dion.

A reader tells whether a dict belongs to its library, and returns its groups and entries in Lowtide's terms: pure functions from
data to data. Codes that Lowtide stores in the same way are copied bit for bit; everything else becomes float32 values, which
restore.py encodes.
"""
