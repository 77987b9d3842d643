/* t_api.c - the public header as a program sees it: sizes, defaults, old and new structs, NULL arguments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tessera.h"

/* A change of these numbers breaks programs that were built before: fields are only appended. */
static void sizes_are_pinned(void **state)
{
    (void)state;
    assert_int_equal(sizeof(tess_error), 512);
    assert_int_equal(sizeof(tess_event), 24);
    assert_int_equal(offsetof(tess_event, logprob), 12);
    assert_int_equal(sizeof(tess_host), 40);
    assert_int_equal(sizeof(tess_model_params), 64);
    assert_int_equal(offsetof(tess_model_params, devices), 24);
    assert_int_equal(sizeof(tess_ctx_params), 56);
    assert_int_equal(offsetof(tess_ctx_params, on_logits), 32);
    assert_int_equal(sizeof(tess_seq_params), 72);
    assert_int_equal(offsetof(tess_seq_params, seed), 48);
    assert_int_equal(sizeof(tess_stream_params), 24);
    assert_int_equal(sizeof(tess_kv_stats), 72);
    assert_int_equal(sizeof(tess_device_info), 160);
    assert_int_equal(offsetof(tess_model_info, stream_bytes), sizeof(tess_model_info) - 8);
}

static void defaults_change_nothing(void **state)
{
    (void)state;
    tess_seq_params p;
    memset(&p, 0xff, sizeof p);
    tess_seq_params_init(&p);
    assert_int_equal(p.struct_size, sizeof p);
    assert_true(p.temperature <= 0 && p.top_p >= 1 && p.min_p <= 0 && p.repeat_penalty >= 1 && p.repeat_penalty <= 1);
    assert_int_equal(p.top_k, 0);
    assert_null(p.stop);
}

static void short_init_stays_inside(void **state)
{
    (void)state;
    struct { tess_seq_params p; unsigned char guard[16]; } s;
    memset(&s, 0xab, sizeof s);
    tess_seq_params_init_(&s.p, 8); /* a program built when the struct had 8 bytes */
    assert_int_equal(s.p.struct_size, 8);
    assert_int_equal(s.p.max_new, 0xabababab);
    memset(&s, 0xab, sizeof s);
    tess_seq_params_init_(&s.p, sizeof s); /* and one that knows more fields than we do: they are zero */
    for (size_t i = 0; i < sizeof s.guard; i++) assert_int_equal(s.guard[i], 0);
}

static void unknown_fields_are_refused(void **state)
{
    (void)state;
    struct { tess_seq_params p; uint64_t newer; } s;
    const float logits[2] = {0, 1};
    tess_token id;
    tess_error e;
    memset(&s, 0, sizeof s);
    tess_seq_params_init_(&s.p, sizeof s);
    assert_int_equal(tess_sample(logits, 2, NULL, 0, 0, &s.p, 0, &id, NULL, &e), TESS_OK);
    assert_int_equal(id, 1);
    s.newer = 1;
    assert_int_equal(tess_sample(logits, 2, NULL, 0, 0, &s.p, 0, &id, NULL, &e), TESS_E_ARG);
    assert_int_equal(id, -1);
    assert_non_null(strstr(e.text, "tess_seq_params"));
    s.p.struct_size = 0;
    assert_int_equal(tess_sample(logits, 2, NULL, 0, 0, &s.p, 0, &id, NULL, &e), TESS_E_ARG);
}

static void null_is_an_error_not_a_crash(void **state)
{
    (void)state;
    tess_error e;
    tess_model *m = (tess_model *)&e;
    tess_ctx *c = (tess_ctx *)&e;
    tess_stream *s = (tess_stream *)&e;
    tess_seq q = 1;
    size_t n = 1;
    tess_event ev[2];
    assert_int_equal(tess_model_open(NULL, NULL, &m, &e), TESS_E_ARG);
    assert_null(m);
    assert_int_equal(tess_model_open("x", NULL, NULL, &e), TESS_E_ARG);
    assert_int_equal(tess_model_open("/nonexistent/x.tess", NULL, &m, NULL), TESS_E_IO);
    assert_int_equal(tess_ctx_open(NULL, NULL, &c, &e), TESS_E_ARG);
    assert_null(c);
    assert_int_equal(tess_stream_open(NULL, NULL, &s, &e), TESS_E_ARG);
    assert_int_equal(tess_seq_open(NULL, NULL, &q, &e), TESS_E_ARG);
    assert_int_equal(q, 0);
    assert_int_equal(tess_step(NULL, ev, 2, &n, &e), TESS_E_ARG);
    assert_int_equal(n, 0);
    assert_int_equal(tess_tokenize(NULL, "a", 1, 0, NULL, 0, &n, &e), TESS_E_ARG);
    assert_int_equal(tess_chat_render(NULL, NULL, 0, NULL, 0, &n, &e), TESS_E_ARG);
    assert_null(tess_seq_logits(NULL, 1, &n));
    tess_model_close(NULL);
    tess_ctx_close(NULL);
    tess_ctx_cancel(NULL);
    tess_stream_close(NULL);
    tess_seq_close(NULL, 1);
}

static void names_of_codes(void **state)
{
    (void)state;
    assert_string_equal(tess_status_name(TESS_E_TEMPLATE), "TESS_E_TEMPLATE");
    assert_string_equal(tess_status_name(TESS_E_KV_FULL), "TESS_E_KV_FULL");
    assert_string_equal(tess_status_name(TESS_IDLE), "TESS_IDLE");
    assert_string_equal(tess_status_name(-99), "unknown status");
    assert_int_equal(tess_version_number(), TESS_VERSION_NUMBER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_pinned), cmocka_unit_test(defaults_change_nothing), cmocka_unit_test(short_init_stays_inside),
        cmocka_unit_test(unknown_fields_are_refused), cmocka_unit_test(null_is_an_error_not_a_crash), cmocka_unit_test(names_of_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
