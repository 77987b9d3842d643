/*
 * api.c - the only definitions of tess_*: argument checks, then one internal call.
 *
 * Growing structs: a caller's struct may be shorter than ours (an older program: what it lacks has the default) or longer (a
 * newer program: the part that we do not know must be zero). params_copy does both.
 */
#include <stdio.h>

#include "chat.h"
#include "ctx.h"
#include "device.h"
#include "tok.h"


uint32_t tess_version_number(void) { return TESS_VERSION_NUMBER; }
const char *tess_build_info(void)
{
    return device_built() ? "tessera 0.1.0; cpu: ref avx2 avxvnni avx512 avx512vnni; cuda: yes"
                          : "tessera 0.1.0; cpu: ref avx2 avxvnni avx512 avx512vnni; cuda: no";
}

const char *tess_status_name(tess_status s)
{
    static const char *const names[] = {"TESS_OK",          "TESS_E_ARG",      "TESS_E_NOMEM",       "TESS_E_IO",
                                        "TESS_E_FORMAT",    "TESS_E_CHECKSUM", "TESS_E_UNSUPPORTED", "TESS_E_DEVICE",
                                        "TESS_E_BUFFER",    "TESS_E_KV_FULL",  "TESS_E_CANCELLED",   "TESS_E_BROKEN",
                                        "TESS_E_NONFINITE", "TESS_E_TEMPLATE"};
    if (s == TESS_IDLE) return "TESS_IDLE";
    return s <= 0 && s > -(int32_t)ARRAY_LEN(names) ? names[-s] : "unknown status";
}

/* ---- structs that grow ---- */

/* dst holds our defaults; gets what the caller's struct has. */
static tess_status params_copy(void *dst, size_t ours, const void *src, const char *name, tess_error *err)
{
    if (!src) return TESS_OK;
    uint32_t theirs = rd32(src);
    if (theirs < 4 || theirs > 4096) return ERR(err, TESS_E_ARG, "%s.struct_size is %u; call its init macro first", name, theirs);
    for (size_t i = ours; i < theirs; i++)
        if (((const uint8_t *)src)[i]) return ERR(err, TESS_E_ARG, "%s has a field (at byte %zu) that this library does not know", name, i);
    memcpy(dst, src, MIN(ours, (size_t)theirs));
    memcpy(dst, &(uint32_t){(uint32_t)ours}, 4);
    return TESS_OK;
}

static void params_init(void *p, size_t size, const void *defaults, size_t ours)
{
    if (!p || size < 4) return;
    memset(p, 0, size);
    memcpy(p, defaults, MIN(size, ours));
    memcpy(p, &(uint32_t){(uint32_t)size}, 4);
}
#define INIT(p, size, ...) params_init((p), (size), &__VA_ARGS__, sizeof(__VA_ARGS__))

static const tess_model_params model_defaults = {.struct_size = sizeof(tess_model_params)};
static const tess_ctx_params ctx_defaults = {.struct_size = sizeof(tess_ctx_params)};
static const tess_seq_params seq_defaults = {.struct_size = sizeof(tess_seq_params), .top_p = 1, .repeat_penalty = 1, .repeat_last_n = -1};
static const tess_stream_params stream_defaults = {.struct_size = sizeof(tess_stream_params)};

void tess_host_init_(tess_host *p, size_t size) { INIT(p, size, (tess_host){0}); }
void tess_device_info_init_(tess_device_info *p, size_t size) { INIT(p, size, (tess_device_info){0}); }
void tess_model_params_init_(tess_model_params *p, size_t size) { params_init(p, size, &model_defaults, sizeof model_defaults); }
void tess_model_info_init_(tess_model_info *p, size_t size) { INIT(p, size, (tess_model_info){0}); }
void tess_ctx_params_init_(tess_ctx_params *p, size_t size) { params_init(p, size, &ctx_defaults, sizeof ctx_defaults); }
void tess_seq_params_init_(tess_seq_params *p, size_t size) { params_init(p, size, &seq_defaults, sizeof seq_defaults); }
void tess_stream_params_init_(tess_stream_params *p, size_t size) { params_init(p, size, &stream_defaults, sizeof stream_defaults); }
void tess_kv_stats_init_(tess_kv_stats *p, size_t size) { INIT(p, size, (tess_kv_stats){0}); }

/* Writes our `size` bytes of info into the caller's struct, as far as it reaches. */
static tess_status info_out(void *out, const void *ours, size_t size, const char *name, tess_error *err)
{
    uint32_t theirs = rd32(out);
    if (theirs < 4 || theirs > 4096) return ERR(err, TESS_E_ARG, "%s.struct_size is %u; call its init macro first", name, theirs);
    memcpy((char *)out + 4, (const char *)ours + 4, MIN(size, (size_t)theirs) - 4);
    return TESS_OK;
}

#define NEED(cond, what) \
    if (!(cond)) return ERR(err, TESS_E_ARG, "%s: %s", __func__, what)

/* ---- devices ---- */

tess_status tess_device_count(uint32_t *n, tess_error *err)
{
    err_clear(err);
    NEED(n, "n is NULL");
    int code = device_count(n);
    if (*n) return TESS_OK;
    return ERR(err, TESS_E_DEVICE, "no CUDA device can be used: %s", code ? device_error(code) : "there is none");
}

tess_status tess_device_get(uint32_t index, tess_device_info *out, tess_error *err)
{
    err_clear(err);
    NEED(out, "out is NULL");
    uint32_t n;
    device_props p;
    TRY(tess_device_count(&n, err));
    if (index >= n) return ERR(err, TESS_E_ARG, "there is no device %u; this machine has %u", index, n);
    int code = device_get(index, &p);
    if (code) return ERR(err, TESS_E_DEVICE, "cuda:%u: %s", index, device_error(code));
    tess_device_info i = {.index = index, .mem_total = p.mem_total, .mem_free = p.mem_free, .major = p.major, .minor = p.minor};
    _Static_assert(sizeof i.name == sizeof p.name, "names are as long as the device's");
    memcpy(i.name, p.name, sizeof i.name);
    return info_out(out, &i, sizeof i, "tess_device_info", err);
}

/* ---- model ---- */

tess_status tess_model_open(const char *path, const tess_model_params *p, tess_model **out, tess_error *err)
{
    err_clear(err);
    NEED(out, "out is NULL");
    *out = NULL;
    NEED(path, "path is NULL");
    tess_model_params mine = model_defaults;
    TRY(params_copy(&mine, sizeof mine, p, "tess_model_params", err));
    return model_open(path, &mine, NULL, out, err);
}

void tess_model_close(tess_model *m) { model_release(m); }

tess_status tess_model_get_info(const tess_model *m, tess_model_info *out, tess_error *err)
{
    err_clear(err);
    NEED(m && out, "an argument is NULL");
    const ct_info *f = ct_get(m->file);
    const kvs *k = f->kv;
    const arch *a = &m->a;
    tess_model_info i = {.vocab_size = a->vocab_size,
                         .n_tokens = m->tokenizer ? tok_size(m->tokenizer) : 0,
                         .max_seq_tokens = a->max_ctx,
                         .n_layers = a->n_layers,
                         .hidden_size = a->hidden_size,
                         .n_heads = a->n_heads,
                         .n_kv_heads = a->n_kv_heads,
                         .n_ranks = m->shards.n_ranks,
                         .n_threads = m->n_threads,
                         .bos = m->bos,
                         .eos = m->n_eos ? m->eos[0] : -1,
                         .pad = m->pad,
                         .unk = m->unk,
                         .n_eos = m->n_eos,
                         .has_chat_template = m->chat_template != NULL,
                         .has_weights = m->has_weights,
                         .file_bytes = f->file_bytes,
                         .weight_bytes = m->weight_bytes,
                         .param_count = f->param_count,
                         .family = a->family,
                         .weight_type = m->has_weights ? dtype_get(m->weight_dtype)->name : "none",
                         .eos_list = m->eos,
                         .token_bytes = m->token_bytes,
                         .token_macs = m->token_macs,
                         .read_bytes = m->read_bytes,
                         .device_bytes = m->device_bytes,
                         .stream_bytes = m->stream_bytes};
    i.temperature = (float)kvs_f64(k, "gen.temperature", -1);
    i.top_p = (float)kvs_f64(k, "gen.top_p", -1);
    i.min_p = (float)kvs_f64(k, "gen.min_p", -1);
    i.repetition_penalty = (float)kvs_f64(k, "gen.repetition_penalty", -1);
    i.top_k = (int32_t)kvs_i64(k, "gen.top_k", -1);
    i.do_sample = kvs_find(k, "gen.do_sample") ? kvs_bool(k, "gen.do_sample", false) : -1;
    return info_out(out, &i, sizeof i, "tess_model_info", err);
}

int32_t tess_fault_describe(const tess_model *m, const void *addr, char *text, size_t n)
{
    const char *path;
    uint64_t off;
    char digits[24];
    size_t at = 0, d = sizeof digits;
    if (!m || !text || n == 0) return 0;
    text[0] = 0;
    if (!ct_fault(m->file, addr, &path, &off)) return 0;
    do digits[--d] = (char)('0' + off % 10);
    while ((off /= 10) != 0);
    const char *parts[3] = {path, " offset ", NULL};
    for (int i = 0; parts[i]; i++)
        for (const char *s = parts[i]; *s && at + 1 < n; s++) text[at++] = *s;
    for (; d < sizeof digits && at + 1 < n; d++) text[at++] = digits[d];
    text[at] = 0;
    return 1;
}

/* ---- text ---- */

static tess_status need_tokenizer(const tess_model *m, tess_error *err)
{
    return m->tokenizer ? TESS_OK : ERR(err, TESS_E_UNSUPPORTED, "%s: holds no tokenizer", ct_get(m->file)->path);
}

/* Copies n elements to the caller, or says how many there are. */
static tess_status give(void *out, size_t cap, const void *data, size_t n, size_t size, size_t *n_out, tess_error *err)
{
    *n_out = n;
    if (n > cap) return ERR(err, TESS_E_BUFFER, "the buffer has room for %zu, %zu are needed", cap, n);
    if (n) memcpy(out, data, n * size);
    return TESS_OK;
}

tess_status tess_tokenize(const tess_model *m, const char *text, size_t len, uint32_t flags, tess_token *out, size_t cap, size_t *n,
                          tess_error *err)
{
    err_clear(err);
    NEED(n, "n is NULL");
    *n = 0;
    NEED(m && (text || !len) && (out || !cap), "an argument is NULL");
    TRY(need_tokenizer(m, err));
    tok_ids ids = {0};
    tess_status st = tok_encode(m->tokenizer, text, len, flags, NULL, 0, &ids, err);
    if (st >= 0) st = give(out, cap, ids.ids, ids.n, sizeof *out, n, err);
    tok_ids_free(m->tokenizer, &ids);
    return st;
}

tess_status tess_detokenize(const tess_model *m, const tess_token *ids, size_t n_ids, uint32_t flags, char *out, size_t cap,
                            size_t *n, tess_error *err)
{
    err_clear(err);
    NEED(n, "n is NULL");
    *n = 0;
    NEED(m && (ids || !n_ids) && (out || !cap), "an argument is NULL");
    TRY(need_tokenizer(m, err));
    buf text;
    buf_init(&text, &m->m);
    tess_status st = tok_decode(m->tokenizer, ids, n_ids, flags, &text, err);
    if (st >= 0) st = give(out, cap, text.data, text.len, 1, n, err);
    buf_free(&text);
    return st;
}

const char *tess_token_text(const tess_model *m, tess_token id, size_t *len)
{
    size_t unused;
    return m && m->tokenizer ? tok_text(m->tokenizer, id, len ? len : &unused) : NULL;
}

/* m may be NULL: then the template is in json. */
static tess_status render(const tess_model *m, const char *json, size_t len, chat_out *out, tess_error *err)
{
    return chat_render(m ? &m->m : &mem_libc, m ? m->chat_template : NULL, m ? m->chat_template_len : 0, json, len,
                       m ? m->bos_text : NULL, m ? m->eos_text : NULL, out, err);
}

tess_status tess_chat_render(const tess_model *m, const char *json, size_t len, char *out, size_t cap, size_t *n, tess_error *err)
{
    err_clear(err);
    NEED(n, "n is NULL");
    *n = 0;
    NEED(json && (out || !cap), "an argument is NULL");
    chat_out text = {0};
    tess_status st = render(m, json, len, &text, err);
    if (st >= 0) st = give(out, cap, text.text.data, text.text.len, 1, n, err);
    chat_out_free(m ? &m->m : &mem_libc, &text);
    return st;
}

tess_status tess_chat_tokenize(const tess_model *m, const char *json, size_t len, tess_token *out, size_t cap, size_t *n, tess_error *err)
{
    err_clear(err);
    NEED(n, "n is NULL");
    *n = 0;
    NEED(m && json && (out || !cap), "an argument is NULL");
    TRY(need_tokenizer(m, err));
    chat_out text = {0};
    tok_ids ids = {0};
    tess_status st = render(m, json, len, &text, err);
    _Static_assert(sizeof(chat_span) == sizeof(tok_span), "spans have one form");
    tok_span *plain = st >= 0 ? mem_calloc(&m->m, text.n_plain, sizeof *plain) : NULL;
    if (st >= 0 && !plain) st = ERR(err, TESS_E_NOMEM, "no memory for %zu spans", text.n_plain);
    for (size_t i = 0; st >= 0 && i < text.n_plain; i++) plain[i] = (tok_span){text.plain[i].off, text.plain[i].len};
    if (st >= 0) st = tok_encode(m->tokenizer, text.text.data, text.text.len, 0, plain, text.n_plain, &ids, err);
    if (st >= 0) st = give(out, cap, ids.ids, ids.n, sizeof *out, n, err);
    mem_free(&m->m, plain);
    tok_ids_free(m->tokenizer, &ids);
    chat_out_free(&m->m, &text);
    return st;
}

struct tess_stream {
    tess_model *model;
    tok_stream *s;
};

tess_status tess_stream_open(const tess_model *m, const tess_stream_params *p, tess_stream **out, tess_error *err)
{
    err_clear(err);
    NEED(out, "out is NULL");
    *out = NULL;
    NEED(m, "m is NULL");
    tess_stream_params mine = stream_defaults;
    TRY(params_copy(&mine, sizeof mine, p, "tess_stream_params", err));
    NEED(mine.stop || !mine.n_stop, "stop is NULL");
    for (uint32_t i = 0; i < mine.n_stop; i++) NEED(mine.stop[i] && mine.stop[i][0], "a stop string is empty");
    TRY(need_tokenizer(m, err));
    tess_stream *s = mem_zalloc(&m->m, sizeof *s);
    if (!s) return ERR(err, TESS_E_NOMEM, "no memory for a stream");
    memcpy(&s->model, &m, sizeof m); /* counts a reference of an otherwise immutable model */
    tess_status st = tok_stream_open(m->tokenizer, mine.flags, mine.stop, mine.n_stop, &s->s, err);
    if (st < 0) {
        mem_free(&m->m, s);
        return st;
    }
    model_retain(s->model);
    *out = s;
    return TESS_OK;
}

tess_status tess_stream_push(tess_stream *s, tess_token id, const char **text, size_t *len, int32_t *stopped, tess_error *err)
{
    err_clear(err);
    NEED(s && text && len && stopped, "an argument is NULL");
    bool stop = false;
    tess_status st = tok_stream_push(s->s, id, text, len, &stop, err);
    *stopped = stop;
    return st;
}

tess_status tess_stream_flush(tess_stream *s, const char **text, size_t *len, tess_error *err)
{
    err_clear(err);
    NEED(s && text && len, "an argument is NULL");
    return tok_stream_flush(s->s, text, len, err);
}

void tess_stream_close(tess_stream *s)
{
    if (!s) return;
    tess_model *m = s->model;
    tok_stream_close(s->s);
    mem_free(&m->m, s);
    model_release(m);
}

/* ---- context ---- */

tess_status tess_ctx_open(tess_model *m, const tess_ctx_params *p, tess_ctx **out, tess_error *err)
{
    err_clear(err);
    NEED(out, "out is NULL");
    *out = NULL;
    NEED(m, "m is NULL");
    tess_ctx_params mine = ctx_defaults;
    TRY(params_copy(&mine, sizeof mine, p, "tess_ctx_params", err));
    return ctx_open(m, &mine, out, err);
}

void tess_ctx_close(tess_ctx *c) { ctx_close(c); }
void tess_ctx_cancel(tess_ctx *c)
{
    if (c) __atomic_store_n(&c->cancel, 1, __ATOMIC_RELAXED);
}

tess_status tess_seq_open(tess_ctx *c, const tess_seq_params *p, tess_seq *out, tess_error *err)
{
    err_clear(err);
    NEED(out, "out is NULL");
    *out = 0;
    NEED(c, "c is NULL");
    tess_seq_params mine = seq_defaults;
    TRY(params_copy(&mine, sizeof mine, p, "tess_seq_params", err));
    NEED(mine.stop || !mine.n_stop, "stop is NULL");
    return ctx_seq_open(c, &mine, out, err);
}

#define NEED_SEQ(c, s, q)           \
    NEED(c, "c is NULL");           \
    ctx_seq *q = ctx_seq_get(c, s); \
    NEED(q, "there is no such sequence (any more)")

tess_status tess_seq_append(tess_ctx *c, tess_seq s, const tess_token *ids, size_t n, tess_error *err)
{
    err_clear(err);
    NEED_SEQ(c, s, q);
    NEED(ids || !n, "ids is NULL");
    return ctx_seq_append(c, q, ids, n, err);
}

tess_status tess_seq_fork(tess_ctx *c, tess_seq src, size_t keep, tess_seq *out, tess_error *err)
{
    err_clear(err);
    NEED(out, "out is NULL");
    *out = 0;
    NEED_SEQ(c, src, q);
    return ctx_seq_fork(c, q, keep, out, err);
}

tess_status tess_seq_truncate(tess_ctx *c, tess_seq s, size_t keep, tess_error *err)
{
    err_clear(err);
    NEED_SEQ(c, s, q);
    ctx_seq_truncate(c, q, keep);
    return TESS_OK;
}

void tess_seq_close(tess_ctx *c, tess_seq s)
{
    ctx_seq *q = c ? ctx_seq_get(c, s) : NULL;
    if (q) ctx_seq_close(c, q);
}

tess_status tess_step(tess_ctx *c, tess_event *ev, size_t cap, size_t *n, tess_error *err)
{
    err_clear(err);
    NEED(n, "n is NULL");
    *n = 0;
    NEED(c && ev, "an argument is NULL");
    NEED(cap / 2 >= c->p.max_seqs, "cap must be at least twice max_seqs, so that no event is lost");
    return ctx_step(c, ev, n, err);
}

const float *tess_seq_logits(tess_ctx *c, tess_seq s, size_t *n)
{
    ctx_seq *q = c ? ctx_seq_get(c, s) : NULL;
    bool have = q && q->has_logits && (q->parked || q->n_done == q->n) && q->n > 0;
    if (n) *n = have ? c->model->a.vocab_size : 0;
    return have ? q->logits : NULL;
}

tess_status tess_sample(const float *logits, size_t n, const tess_token *history, size_t n_history, size_t n_prompt,
                        const tess_seq_params *p, uint64_t step, tess_token *out, float *logprob, tess_error *err)
{
    err_clear(err);
    NEED(out, "out is NULL");
    *out = -1;
    NEED(logits && n && n <= INT32_MAX, "there are no logits, or too many");
    NEED(history || !n_history, "history is NULL");
    tess_seq_params mine = seq_defaults;
    float unused;
    TRY(params_copy(&mine, sizeof mine, p, "tess_seq_params", err));
    TRY(sampler_check(&mine, err));
    sampler_work work = {.m = &mem_libc};
    tess_status st = sampler_draw(logits, n, history, n_history, MIN(n_prompt, n_history), &mine, step, &work, out,
                                  logprob ? logprob : &unused, err);
    sampler_free(&work);
    return st;
}

tess_status tess_ctx_kv_stats(const tess_ctx *c, tess_kv_stats *out, tess_error *err)
{
    err_clear(err);
    NEED(c && out, "an argument is NULL");
    tess_kv_stats s = {.page_tokens = c->p.page_tokens,
                       .pages_total = c->kv.pages_made,
                       .pages_used = c->kv.pages_live,
                       .pages_shared = c->kv.pages_shared,
                       .bytes_per_page = kv_bytes_per_page(&c->kv),
                       .preemptions = c->preemptions,
                       .pages_kept = c->kv.prefix.pages,
                       .tokens_shared = c->tokens_shared};
    for (uint32_t i = 0; i < c->p.max_seqs; i++) {
        s.seqs_open += c->seqs[i].open;
        s.seqs_waiting += c->seqs[i].open && c->seqs[i].n_done < c->seqs[i].n;
    }
    return info_out(out, &s, sizeof s, "tess_kv_stats", err);
}
