#include "tok_int.h"
tess_status unigram_open(tok *t, const kvs *k, tess_error *err)
{
    UNUSED(t); UNUSED(k);
    return ERR(err, TESS_E_UNSUPPORTED, "unigram");
}
tess_status unigram_word(tok_run *r, const char *s, size_t n) { UNUSED(s); UNUSED(n); return ERR(r->err, TESS_E_UNSUPPORTED, "unigram"); }
void unigram_close(tok *t) { UNUSED(t); }
