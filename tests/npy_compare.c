/*
 * npy_compare.c - reads goldens for the test scripts, without Python.
 *
 *   npy_compare ids FILE.json KEY [INDEX]           prints the array KEY (of element INDEX) separated by commas
 *   npy_compare text FILE.json KEY INDEX            prints the string KEY of element INDEX
 *   npy_compare number FILE.json KEY                prints a number
 *   npy_compare logits GOLDEN.safetensors OUT.npy TOLERANCE
 *       rows of OUT are prompt_logits and then decode_logits of the golden; the shapes must agree
 *   npy_compare logprobs GOLDEN.json INDEX OUT.npy TOLERANCE
 *       log-softmax of rows of OUT against prompt_logprobs, greedy_logprobs and the top 20 after the prompt
 *   npy_compare near OUT1.npy OUT2.npy TOLERANCE
 *   npy_compare kl REF.npy OUT.npy MOST LEAST [FROM]
 *       mean KL divergence of OUT from REF over rows FROM.. is at most MOST, and the best id is the same in at least LEAST of them
 *   npy_compare within A B TOLERANCE                two numbers
 *   npy_compare offset FILE.safetensors NAME        where the tensor's data begin in the file
 * Exit status 0 = equal; 1 = different, with the place and the difference; 2 = something can not be read. A NaN differs.
 */
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { float *v; size_t rows, cols; char *owner; } matrix;

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s: cannot open\n", path);
        exit(2);
    }
    long size = ftell(f);
    rewind(f);
    char *p = malloc((size_t)size + 1);
    if (!p || fread(p, 1, (size_t)size, f) != (size_t)size) {
        fprintf(stderr, "%s: cannot read\n", path);
        exit(2);
    }
    fclose(f);
    p[size] = 0;
    *n = (size_t)size;
    return p;
}

static void bad(const char *path, const char *why)
{
    fprintf(stderr, "%s: %s\n", path, why);
    exit(2);
}

/* NPY v1.0 as run-model writes it, checked strictly: the 128-byte header, the size of the file. */
static matrix read_npy(const char *path)
{
    size_t n;
    matrix m = {.owner = read_file(path, &n)};
    const char *s = m.owner, *text = s + 10, *shape; /* text: up to the newline; the bytes before hold zeros */
    if (n < 128 || memcmp(s, "\x93NUMPY\x01\x00\x76\x00", 10) != 0 || s[127] != '\n') bad(path, "no NPY v1.0 header of 128 bytes");
    if (!strstr(text, "'descr': '<f4'") || !strstr(text, "'fortran_order': False") || !(shape = strstr(text, "'shape': (")))
        bad(path, "header does not say float32 in C order");
    if (sscanf(shape, "'shape': (%zu, %zu)", &m.rows, &m.cols) != 2 || n != 128 + m.rows * m.cols * 4) bad(path, "shape and size disagree");
    memmove(m.owner, m.owner + 128, n - 128); /* aligned for floats */
    m.v = (float *)(void *)m.owner;
    return m;
}

static matrix read_tensor(const char *path, const char *name)
{
    size_t n;
    json_error_t e;
    uint64_t head;
    matrix m = {.owner = read_file(path, &n)};
    memcpy(&head, m.owner, 8);
    json_t *j = n > 8 && head < n - 8 ? json_loadb(m.owner + 8, (size_t)head, 0, &e) : NULL;
    json_int_t rows = 0, cols = 0, begin = 0, end = 0;
    const char *dtype = "";
    if (json_unpack(json_object_get(j, name), "{s:s,s:[I,I],s:[I,I]}", "dtype", &dtype, "shape", &rows, &cols, "data_offsets", &begin, &end) != 0 ||
        strcmp(dtype, "F32") != 0 || end - begin != rows * cols * 4 || (size_t)end + 8 + head > n)
        bad(path, "has no such float32 matrix");
    memmove(m.owner, m.owner + 8 + head + begin, (size_t)(end - begin));
    m.v = (float *)(void *)m.owner;
    m.rows = (size_t)rows;
    m.cols = (size_t)cols;
    json_decref(j);
    return m;
}

static json_t *read_json(const char *path)
{
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    if (!j) bad(path, e.text);
    return j;
}
static json_t *element(json_t *j, const char *index) { return index ? json_array_get(j, (size_t)atol(index)) : j; }

/* Largest difference of n floats, kept in *worst; NaN counts as infinite. */
static void compare(const float *a, const float *b, size_t n, double *worst)
{
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= *worst)) *worst = isnan(d) ? INFINITY : d;
    }
}

static int verdict(const char *what, double worst, double tolerance)
{
    printf("%s: largest difference %.3g, allowed %.3g\n", what, worst, tolerance);
    return worst <= tolerance ? 0 : 1;
}

static int compare_logits(char **a)
{
    matrix prompt = read_tensor(a[0], "prompt_logits"), decode = read_tensor(a[0], "decode_logits"), got = read_npy(a[1]);
    double worst = 0;
    if (got.cols != prompt.cols || got.rows != prompt.rows + decode.rows) {
        printf("%s: %zu x %zu, wanted %zu x %zu\n", a[1], got.rows, got.cols, prompt.rows + decode.rows, prompt.cols);
        return 1;
    }
    compare(got.v, prompt.v, prompt.rows * prompt.cols, &worst);
    compare(got.v + prompt.rows * prompt.cols, decode.v, decode.rows * decode.cols, &worst);
    free(prompt.owner);
    free(decode.owner);
    free(got.owner);
    return verdict(a[1], worst, atof(a[2]));
}

static int compare_near(char **a)
{
    matrix x = read_npy(a[0]), y = read_npy(a[1]);
    double worst = 0;
    if (x.rows != y.rows || x.cols != y.cols) worst = INFINITY;
    else compare(x.v, y.v, x.rows * x.cols, &worst);
    free(x.owner);
    free(y.owner);
    return verdict(a[1], worst, atof(a[2]));
}

static double log_prob(const matrix *m, size_t row, json_int_t id)
{
    if (row >= m->rows || id < 0 || (size_t)id >= m->cols) return NAN;
    const float *v = m->v + row * m->cols;
    double top = v[0], sum = 0;
    for (size_t i = 1; i < m->cols; i++) top = fmax(top, (double)v[i]);
    for (size_t i = 0; i < m->cols; i++) sum += exp((double)v[i] - top);
    return (double)v[id] - top - log(sum);
}

static json_int_t int_at(const json_t *list, size_t i) { return json_integer_value(json_array_get(list, i)); }

/* Row first + i gives the log-probability of ids[skip + i]; rows advance with i unless `one_row`. */
static void compare_list(const matrix *m, const json_t *ids, size_t skip, const json_t *want, size_t first, bool one_row, double *worst)
{
    if (json_array_size(want) == 0) *worst = INFINITY;
    for (size_t i = 0; i < json_array_size(want); i++) {
        double d = fabs(log_prob(m, one_row ? first : first + i, int_at(ids, skip + i)) - json_number_value(json_array_get(want, i)));
        if (!(d <= *worst)) *worst = isnan(d) ? INFINITY : d;
    }
}

static int compare_logprobs(char **a)
{
    json_t *root = read_json(a[0]), *g = element(root, a[1]), *ids = json_object_get(g, "prompt_ids");
    matrix m = read_npy(a[2]);
    size_t p = json_array_size(ids);
    double prompt = 0, greedy = 0, top = 0, tolerance = atof(a[3]);
    if (p > 1) compare_list(&m, ids, 1, json_object_get(g, "prompt_logprobs"), 0, false, &prompt);
    compare_list(&m, json_object_get(g, "greedy_ids"), 0, json_object_get(g, "greedy_logprobs"), p - 1, false, &greedy);
    compare_list(&m, json_object_get(g, "top20_ids"), 0, json_object_get(g, "top20_logprobs"), p - 1, true, &top);
    free(m.owner);
    json_decref(root);
    return verdict("prompt", prompt, tolerance) | verdict("greedy", greedy, tolerance) | verdict("top 20", top, tolerance);
}

/* Of one row: sum of p * (log p - log q), p from a, q from b; *same: both have their greatest logit at one id. */
static double row_kl(const float *a, const float *b, size_t n, bool *same)
{
    size_t ta = 0, tb = 0;
    double sa = 0, sb = 0, kl = 0;
    for (size_t i = 1; i < n; i++) ta = a[i] > a[ta] ? i : ta, tb = b[i] > b[tb] ? i : tb;
    for (size_t i = 0; i < n; i++) sa += exp((double)a[i] - (double)a[ta]), sb += exp((double)b[i] - (double)b[tb]);
    for (size_t i = 0; i < n; i++) {
        double p = (double)a[i] - (double)a[ta] - log(sa), q = (double)b[i] - (double)b[tb] - log(sb);
        kl += exp(p) * (p - q);
    }
    *same = ta == tb;
    return kl;
}

static int compare_kl(int argc, char **a)
{
    matrix x = read_npy(a[0]), y = read_npy(a[1]);
    double kl = 0, most = atof(a[2]), least = atof(a[3]);
    size_t from = argc > 4 ? (size_t)atol(a[4]) : 0, agree = 0, n = x.rows > from ? x.rows - from : 0;
    if (n == 0 || x.rows != y.rows || x.cols != y.cols) bad(a[1], "the shapes differ, or there are no rows");
    for (size_t i = from; i < x.rows; i++) {
        bool same;
        kl += row_kl(x.v + i * x.cols, y.v + i * x.cols, x.cols, &same) / (double)n;
        agree += same;
    }
    free(x.owner);
    free(y.owner);
    printf("%s: mean KL %.3g, allowed %.3g; same best id in %.4f of %zu rows, wanted %.4f\n", a[1], kl, most, (double)agree / (double)n, n, least);
    return kl <= most && (double)agree >= least * (double)n ? 0 : 1;
}

static int print_offset(const char *path, const char *name)
{
    size_t n;
    uint64_t head;
    json_int_t begin = 0, end = 0;
    json_error_t e;
    char *p = read_file(path, &n);
    memcpy(&head, p, 8);
    json_t *j = n > 8 && head < n - 8 ? json_loadb(p + 8, (size_t)head, 0, &e) : NULL;
    if (json_unpack(json_object_get(j, name), "{s:[I,I]}", "data_offsets", &begin, &end) != 0) bad(path, "has no such tensor");
    printf("%llu\n", (unsigned long long)(8 + head + (uint64_t)begin));
    json_decref(j);
    free(p);
    return 0;
}

static int print_value(int argc, char **argv)
{
    json_t *root = read_json(argv[2]), *v = json_object_get(element(root, argc > 4 ? argv[4] : NULL), argv[3]);
    if (!v) bad(argv[2], "has no such key");
    if (json_is_string(v)) fputs(json_string_value(v), stdout);
    else if (json_is_number(v)) printf("%.10g\n", json_number_value(v));
    for (size_t i = 0; i < json_array_size(v); i++) printf("%s%lld", i ? "," : "", (long long)int_at(v, i));
    if (json_is_array(v)) putchar('\n');
    json_decref(root);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (argc >= 4 && (strcmp(what, "ids") == 0 || strcmp(what, "text") == 0 || strcmp(what, "number") == 0)) return print_value(argc, argv);
    if (argc == 5 && strcmp(what, "logits") == 0) return compare_logits(argv + 2);
    if ((argc == 6 || argc == 7) && strcmp(what, "kl") == 0) return compare_kl(argc - 2, argv + 2);
    if (argc == 6 && strcmp(what, "logprobs") == 0) return compare_logprobs(argv + 2);
    if (argc == 5 && strcmp(what, "near") == 0) return compare_near(argv + 2);
    if (argc == 5 && strcmp(what, "within") == 0) return verdict("number", fabs(atof(argv[2]) - atof(argv[3])), atof(argv[4]));
    if (argc == 4 && strcmp(what, "offset") == 0) return print_offset(argv[2], argv[3]);
    fputs("usage: see the head of npy_compare.c\n", stderr);
    return 2;
}
