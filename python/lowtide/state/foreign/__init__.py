"""State dicts of other libraries' optimizers: bitsandbytes, torchao's low-bit optimizers, FlashOptim and the packages
schedulefree, prodigyopt and dion.

A reader recognizes the dicts of its library, and returns their groups and entries in Lowtide's terms: pure functions from data
to data. Codes that Lowtide stores in the same way are copied bit for bit; all else becomes float32 values, which restore.py
encodes.
"""
