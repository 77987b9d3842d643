/*
 * t_chat.c - chat templates: published templates and single constructs against recorded results of jinja2,
 * untrusted spans, errors and limits.
 *
 * tests/data/chat/cases.json holds {"in": input, "cases": [{"t": template, "out": text} or {"t", "error":
 * jinja2's message}]}, made by make_cases.py there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <jansson.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chat.h"

static tess_status render(const char *tmpl, const char *json, chat_out *out, tess_error *err)
{
    return chat_render(&mem_libc, tmpl, strlen(tmpl), json, strlen(json), NULL, NULL, out, err);
}

static json_t *load(const char *path)
{
    json_error_t e;
    return json_load_file(path, 0, &e);
}

/* ---- goldens -------------------------------------------------------------------------------------- */

/* One recorded case; 1 when it differs, which is printed. */
static int check_case(const char *name, const char *tmpl, size_t len, json_t *input, const char *want,
                      size_t want_len, bool want_error)
{
    chat_out out;
    tess_error err = {0};
    char *json = json_dumps(input, JSON_COMPACT);
    assert_non_null(json);
    tess_status st = chat_render(&mem_libc, tmpl, len, json, strlen(json), NULL, NULL, &out, &err);
    bool same = want_error
                    ? st == TESS_E_TEMPLATE && err.text[0]
                    : st == TESS_OK && out.text.len == want_len && memcmp(out.text.data, want, want_len) == 0;
    if (!same)
        printf("DIFF %s\n  template: %.300s\n  want: %s%.*s\n  got:  %s%.*s\n", name, tmpl,
               want_error ? "error " : "", (int)MIN(want_len, (size_t)600), want, st < 0 ? err.text : "",
               st < 0 ? 0 : (int)MIN(out.text.len, (size_t)600), st < 0 ? "" : out.text.data);
    chat_out_free(&mem_libc, &out);
    free(json);
    return !same;
}

static void recorded_cases(void **state)
{
    const char *dir = getenv("TESS_TEST_DATA");
    char path[512];
    UNUSED(state);
    snprintf(path, sizeof path, "%s/chat/cases.json", dir ? dir : "tests/data");
    json_t *file = load(path), *all = json_object_get(file, "cases"), *c;
    size_t i;
    int bad = 0;
    assert_non_null(all);
    assert_true(json_array_size(all) > 100);
    json_array_foreach(all, i, c)
    {
        char name[32];
        json_t *t = json_object_get(c, "t"), *out = json_object_get(c, "out"), *e = json_object_get(c, "error");
        json_t *want = out ? out : e;
        snprintf(name, sizeof name, "case %zu", i);
        bad += check_case(name, json_string_value(t), json_string_length(t), json_object_get(file, "in"),
                          json_string_value(want), json_string_length(want), !out);
    }
    printf("%zu cases, %d differ\n", json_array_size(all), bad);
    json_decref(file);
    assert_int_equal(bad, 0);
}

static json_t *load_shared(const char *name)
{
    const char *const roots[] = {getenv("TESS_SHARED"), "../shared", "../../shared"};
    for (size_t i = 0; i < ARRAY_LEN(roots); i++) {
        char path[512];
        if (!roots[i]) continue;
        snprintf(path, sizeof path, "%s/%s", roots[i], name);
        json_t *j = load(path);
        if (j) return j;
    }
    return NULL;
}
static json_t *golden_input(json_t *t, json_t *c)
{
    json_t *in = json_object();
    static const char *const keys[] = {"messages", "tools", "add_generation_prompt"};
    for (size_t k = 0; k < ARRAY_LEN(keys); k++)
        if (json_object_get(c, keys[k])) json_object_set(in, keys[k], json_object_get(c, keys[k]));
    json_object_set(in, "bos_token", json_object_get(t, "bos_token"));
    json_object_set(in, "eos_token", json_object_get(t, "eos_token"));
    json_object_set(in, "variables", json_object_get(t, "variables"));
    return in;
}
static void published_templates(void **state)
{
    json_t *all = load_shared("templates/golden.json"), *t, *c;
    size_t i, k;
    int n = 0, bad = 0;
    UNUSED(state);
    if (!all) {
        printf("skip: templates/golden.json is not there\n");
        skip();
    }
    json_array_foreach(all, i, t) json_array_foreach(json_object_get(t, "cases"), k, c)
    {
        char name[200];
        json_t *tmpl = json_object_get(t, "template"), *out = json_object_get(c, "rendered"),
               *in = golden_input(t, c);
        bool error = !json_is_string(out);
        json_t *want = error ? json_object_get(c, "error") : out;
        snprintf(name, sizeof name, "%s %s", json_string_value(json_object_get(t, "name")),
                 json_string_value(json_object_get(c, "case")));
        bad += check_case(name, json_string_value(tmpl), json_string_length(tmpl), in,
                          json_is_string(want) ? json_string_value(want) : "",
                          json_is_string(want) ? json_string_length(want) : 0, error);
        json_decref(in);
        n++;
    }
    printf("%d golden renders, %d differ\n", n, bad);
    json_decref(all);
    assert_true(n > 0);
    assert_int_equal(bad, 0);
}

/* ---- untrusted spans ------------------------------------------------------------------------------ */

/* Renders and writes ^ under untrusted bytes and . under the others. */
static void check_marks(const char *tmpl, const char *json, const char *text, const char *marks)
{
    chat_out out;
    tess_error err = {0};
    char got[512];
    if (render(tmpl, json, &out, &err) < 0) fail_msg("%s: %s", tmpl, err.text);
    assert_string_equal(out.text.data, text);
    memset(got, '.', sizeof got);
    got[out.text.len] = 0;
    size_t last = 0;
    for (size_t i = 0; i < out.n_plain; i++) {
        assert_true(out.plain[i].len > 0 && out.plain[i].off + out.plain[i].len <= out.text.len);
        assert_true(i == 0 || out.plain[i].off > last); /* ascending, merged */
        last = out.plain[i].off + out.plain[i].len;
        memset(got + out.plain[i].off, '^', out.plain[i].len);
    }
    assert_string_equal(got, marks);
    chat_out_free(&mem_libc, &out);
}
static void untrusted_spans(void **state)
{
    static const char in[] = "{\"messages\":[{\"role\":\"user\",\"content\":\" a<b> "
                             "\"}],\"bos_token\":\"<s>\",\"variables\":{\"v\":\"var\"},\"tools\":[{\"k\":1}]}";
    UNUSED(state);
    check_marks("{{bos_token}}<|{{messages[0].role}}|>{{v}}", in, "<s><|user|>var", ".....^^^^.....");
    check_marks("{{ '<' ~ messages[0].content|trim ~ '>' }}", in, "<a<b>>", ".^^^^.");
    check_marks("{% set m = messages[0] %}{{ m.role[1:3] + 'X' + m.role[::-1] }}", in, "seXresu", "^^.^^^^");
    check_marks("{{ messages[0].role|replace('se', 'SE') }}{{ 'xsex'|replace('se', messages[0].role) }}", in,
                "uSErxuserx", "^..^.^^^^.");
    check_marks("{{ ['a', messages[0].role]|join('+') }}", in, "a+user", "..^^^^");
    check_marks("{{ messages[0].role|upper }}{{ 'a'|upper }}{{ messages[0].role|title }}", in, "USERAUser",
                "^^^^.^^^^");
    check_marks("{{ messages[0]|tojson }}", in, "{\"role\": \"user\", \"content\": \" a<b> \"}",
                "..^^^^....^^^^....^^^^^^^....^^^^^^..");
    check_marks("{{ tools }}", in, "[{'k': 1}]", "...^......");
    check_marks("{% set x %}[{{ messages[0].role }}]{% endset %}{{ x }}{{ '%s|%s' % ('a', messages[0].role) }}",
                in, "[user]a|user", ".^^^^...^^^^");
    check_marks(
        "{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(messages[0].role) }}{{ '{}!'.format(messages[0].role) }}",
        in, "<user>user!", ".^^^^.^^^^.");
    check_marks("{{ messages[0].content|e }}{{ messages[0].role|indent(2, true) }}", in, " a&lt;b&gt;   user",
                "^^^^^^^^^^^^..^^^^");
    check_marks("{% for c in messages[0].role %}{{ c }}-{% endfor %}{{ messages[0].content.split('<')[1] }}",
                in, "u-s-e-r-b> ", "^.^.^.^.^^^");
    check_marks("{% filter upper %}x{{ messages[0].role }}{% endfilter %}{{ messages[0].role * 2 }}", in,
                "XUSERuseruser", ".^^^^^^^^^^^^");
}

/* ---- errors and limits ---------------------------------------------------------------------------- */

static void check_error(const char *tmpl, const char *json, tess_status want, const char *part)
{
    chat_out out;
    tess_error err = {0};
    tess_status st = render(tmpl, json, &out, &err);
    if (st != want || !strstr(err.text, part))
        fail_msg("%s: got %d '%s', want %d with '%s'", tmpl, (int)st, err.text, (int)want, part);
    assert_null(out.plain);
    assert_null(out.text.data);
    chat_out_free(&mem_libc, &out);
}
#define EMPTY "{\"messages\":[]}"
static void errors(void **state)
{
    UNUSED(state);
    check_error("a\nb\n{{ raise_exception('no, thanks') }}", EMPTY, TESS_E_TEMPLATE,
                "chat template line 3: no, thanks");
    check_error("\n{% if x %}\n", EMPTY, TESS_E_TEMPLATE, "line 2: a block is not closed");
    check_error("{{ a.b.c }}", EMPTY, TESS_E_TEMPLATE, "line 1: 'a' is undefined");
    check_error("{{ 1 / 0 }}", EMPTY, TESS_E_TEMPLATE, "division by zero");
    check_error("{{ x|nofilter }}", EMPTY, TESS_E_TEMPLATE, "no filter named 'nofilter'");
    check_error("{{ 'abc' }", EMPTY, TESS_E_TEMPLATE, "line 1");
    check_error("{{ messages.append(1) }}", EMPTY, TESS_E_TEMPLATE, "no attribute 'append'");
    check_error("{{ 9223372036854775807 + 1 }}", EMPTY, TESS_E_TEMPLATE, "64 bits");
    check_error("\xff", EMPTY, TESS_E_TEMPLATE, "UTF-8");
    check_error("x", "", TESS_E_ARG, "json");
    check_error("x", "[]", TESS_E_ARG, "object");
    check_error("x", "{}", TESS_E_ARG, "\"messages\" is missing");
    check_error("x", "{\"messages\":{}}", TESS_E_ARG, "array");
    check_error("x", "{\"messages\":[],\"messages\":[]}", TESS_E_ARG, "twice");
    check_error("x", "{\"messages\":[],\"message\":[]}", TESS_E_ARG, "unknown key \"message\"");
    check_error("x", "{\"messages\":[]} x", TESS_E_ARG, "more text");
    check_error("x", "{\"messages\":[01]}", TESS_E_ARG, "byte");
    check_error("x", "{\"messages\":[\"\\ud800\"]}", TESS_E_ARG, "surrogate");
    check_error("x", "{\"messages\":[99999999999999999999]}", TESS_E_ARG, "64 bits");
    check_error("x", "{\"messages\":[1e999]}", TESS_E_ARG, "too large");
    check_error("x", "{\"messages\":[\"\xff\"]}", TESS_E_ARG, "UTF-8");
}

static char *repeat(const char *a, size_t n, const char *mid, const char *b)
{
    size_t la = strlen(a), lb = strlen(b), lm = strlen(mid);
    char *s = malloc(n * (la + lb) + lm + 1), *p = s;
    assert_non_null(s);
    for (size_t i = 0; i < n; i++, p += la) memcpy(p, a, la);
    memcpy(p, mid, lm);
    p += lm;
    for (size_t i = 0; i < n; i++, p += lb) memcpy(p, b, lb);
    *p = 0;
    return s;
}
/* All that nests, far beyond the limits: an error each time, whatever the stack. */
static void run_nested(void)
{
    static const char *const nests[][3] = {{"{{", "((", "))"},
                                           {"", "{% if 1 %}", "{% endif %}"},
                                           {"", "{% for a in [1] %}", "{% endfor %}"},
                                           {"{{", "[[", "]]"},
                                           {"{{", "{1:", "}"},
                                           {"{{", "- ", ""},
                                           {"{{", "not ", ""},
                                           {"{{", "a[", "]"},
                                           {"{{", "f(", ")"},
                                           {"{{ 1", "|d(1", ")"},
                                           {"{{", "1 if 1 else ", ""},
                                           {"{{ 1", "+1", ""},
                                           {"{{ a", ".a", ""},
                                           {"{{ 'a'", "|trim", ""},
                                           {"", "{% macro m() %}", "{% endmacro %}"},
                                           {"{{", "1 + (2 * ", ")"},
                                           {"", "{% set x %}", "{% endset %}"},
                                           {"", "{% with %}", "{% endwith %}"},
                                           {"", "{% filter trim %}", "{% endfilter %}"}};
    for (size_t i = 0; i < ARRAY_LEN(nests); i++) {
        char *mid = repeat(nests[i][1], 20000, "1", nests[i][2]);
        char *all = malloc(strlen(mid) + 64);
        chat_out out;
        tess_error err = {0};
        assert_non_null(all);
        sprintf(all, "%s%s%s", nests[i][0], mid, nests[i][0][0] ? "}}" : "");
        if (render(all, EMPTY, &out, &err) != TESS_E_TEMPLATE) fail_msg("nest %zu was not refused", i);
        chat_out_free(&mem_libc, &out);
        free(all);
        free(mid);
    }
    check_error("{% macro f(x) %}{% if 1 %}{{ f(x) }}{% endif %}{% endmacro %}{{ f(1) }}", EMPTY,
                TESS_E_TEMPLATE, "nested deeper");
    check_error(
        "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        EMPTY, TESS_E_TEMPLATE, "nested deeper");
    check_error("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ "
                "ns.x|tojson }}",
                EMPTY, TESS_E_TEMPLATE, "nested deeper");
    check_error("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ "
                "ns.x == [ns.x] }}",
                EMPTY, TESS_E_TEMPLATE, "");
    check_error("{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}", EMPTY, TESS_E_TEMPLATE,
                "nested deeper");
    char *deep = repeat("[", 100000, "", "]"), *json = malloc(strlen(deep) + 64);
    assert_non_null(json);
    sprintf(json, "{\"messages\":%s}", deep);
    check_error("x", json, TESS_E_ARG, "nested too deeply");
    free(json);
    free(deep);
}
static void nesting(void **state)
{
    UNUSED(state);
    run_nested();
}
/* The same in a process of this program with 256 KiB of stack. Sanitizers need far larger frames. */
static void small_stack(void **state)
{
    UNUSED(state);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    skip();
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    skip();
#endif
#endif
    int status = -1;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit small = {256 << 10, 256 << 10};
        /* By its resolved name: under valgrind the link itself leads the kernel to valgrind's own program. */
        char self[4096];
        ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        self[n < 0 ? 0 : n] = 0;
        if (setrlimit(RLIMIT_STACK, &small) == 0) execl(self, "t_chat", "nest", (char *)NULL);
        _exit(99);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Still usable: 190 brackets, 60 levels of macro. */
static void depth_is_enough(void **state)
{
    chat_out out;
    tess_error err = {0};
    UNUSED(state);
    char *mid = repeat("(", 190, "7", ")"), *all = malloc(strlen(mid) + 8);
    assert_non_null(all);
    sprintf(all, "{{%s}}", mid);
    if (render(all, EMPTY, &out, &err) < 0) fail_msg("%s", err.text);
    assert_string_equal(out.text.data, "7");
    chat_out_free(&mem_libc, &out);
    free(all);
    free(mid);
    static const char rec[] =
        "{% macro f(n) %}{% if n > 0 %}{{ n }} {{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}";
    if (render(rec, EMPTY, &out, &err) < 0) fail_msg("%s", err.text);
    chat_out_free(&mem_libc, &out);
}

static void work_limits(void **state)
{
    UNUSED(state);
    check_error("{% for i in range(100000) %}{% for k in range(100000) %}{% endfor %}{% endfor %}", EMPTY,
                TESS_E_TEMPLATE, "steps");
    check_error("{{ 'a' * 9999999999 }}", EMPTY, TESS_E_TEMPLATE, "");
    check_error("{% set ns = namespace(s='abcdefgh') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% "
                "endfor %}{{ ns.s }}",
                EMPTY, TESS_E_TEMPLATE, "");
    check_error(
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        EMPTY, TESS_E_TEMPLATE, "");
    check_error("{{ [1] * 999999999999 }}", EMPTY, TESS_E_TEMPLATE, "");
    check_error("{{ '%999999999d' % 1 }}", EMPTY, TESS_E_TEMPLATE, "MiB");
    check_error("{{ range(100001) }}", EMPTY, TESS_E_TEMPLATE, "range");
    check_error("{{ 'x'|center(999999999) }}", EMPTY, TESS_E_TEMPLATE, "");
    char *big = malloc((1 << 20) + 2);
    assert_non_null(big);
    memset(big, 'x', (1 << 20) + 1);
    big[(1 << 20) + 1] = 0;
    check_error(big, EMPTY, TESS_E_TEMPLATE, "bytes");
    free(big);
}

/* Memory that ends after some allocations: NOMEM, nothing leaks. */
typedef struct {
    int left, live;
} meter;
static void *meter_alloc(void *user, size_t size, size_t align)
{
    meter *m = user;
    if (m->left-- <= 0) return NULL;
    m->live++;
    return aligned_alloc(align, size);
}
static void meter_release(void *user, void *p, size_t size)
{
    UNUSED(size);
    ((meter *)user)->live--;
    free(p);
}
static void out_of_memory(void **state)
{
    static const char tmpl[] = "{% for i in range(2000) %}{{ messages[0].content ~ i }}{% endfor %}";
    static const char json[] = "{\"messages\":[{\"content\":\"some text to copy around\"}]}";
    bool done = false;
    UNUSED(state);
    for (int n = 0; n < 200 && !done; n++) {
        meter k = {n, 0};
        mem m = {&k, meter_alloc, meter_release, NULL};
        chat_out out;
        tess_error err = {0};
        tess_status st = chat_render(&m, tmpl, strlen(tmpl), json, strlen(json), NULL, NULL, &out, &err);
        assert_true(st == TESS_OK || st == TESS_E_NOMEM);
        done = st == TESS_OK;
        chat_out_free(&m, &out);
        assert_int_equal(k.live, 0);
    }
    assert_true(done);
}

static void tokens_and_defaults(void **state)
{
    chat_out out;
    tess_error err = {0};
    static const char tmpl[] =
        "{{ bos_token }}|{{ eos_token is defined }}|{{ tools is none }}|{{ add_generation_prompt }}";
    static const char own[] = "{\"messages\":[],\"bos_token\":\"<b>\"}";
    UNUSED(state);
    assert_int_equal(chat_render(&mem_libc, tmpl, strlen(tmpl), EMPTY, strlen(EMPTY), "<s>", NULL, &out, &err),
                     TESS_OK);
    assert_string_equal(out.text.data, "<s>|False|True|False");
    chat_out_free(&mem_libc, &out);
    assert_int_equal(chat_render(&mem_libc, tmpl, strlen(tmpl), own, strlen(own), "<s>", "</s>", &out, &err),
                     TESS_OK);
    assert_string_equal(out.text.data, "<b>|True|True|False");
    chat_out_free(&mem_libc, &out);
    assert_int_equal(render("{{ strftime_now('%Y') }}", EMPTY, &out, &err), TESS_OK);
    assert_true(out.text.len == 4 && out.text.data[0] == '2');
    chat_out_free(&mem_libc, &out);
}

int main(int argc, char **argv)
{
    UNUSED(argv);
    if (argc > 1) return run_nested(), 0; /* for a run with a small stack */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_cases),  cmocka_unit_test(published_templates),
        cmocka_unit_test(untrusted_spans), cmocka_unit_test(errors),
        cmocka_unit_test(nesting),         cmocka_unit_test(small_stack),
        cmocka_unit_test(depth_is_enough), cmocka_unit_test(work_limits),
        cmocka_unit_test(out_of_memory),   cmocka_unit_test(tokens_and_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
