"""State dicts of other libraries' optimizers: bitsandbytes, torchao's low-bit ones, FlashOptim and the package
schedulefree.

A reader says whether a dict is of its library, and gives its groups and entries in Lowtide's terms: pure functions from
data to data. Codes that Lowtide stores alike are taken over bit for bit; everything else becomes float32 values, which
restore.py encodes.
"""
