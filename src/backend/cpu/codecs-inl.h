// All codecs of one instruction set: the generic form, then the fast forms, one line each. Every kernel file includes
// this list instead of single forms, so that a codec is the same type in all of them.
#include "backend/cpu/codec-inl.h"
#include "backend/cpu/dynamic8_lines-inl.h"
#include "backend/cpu/dynamic8_avx2-inl.h"
#include "backend/cpu/dynamic8_roof-inl.h"
#include "backend/cpu/dynamic8_vbmi-inl.h"
#include "backend/cpu/dynamic8_words-inl.h"
#include "backend/cpu/dynamic8_avx512-inl.h"
#include "backend/cpu/dynamic4_vbmi-inl.h"
#include "backend/cpu/float8_vbmi-inl.h"
