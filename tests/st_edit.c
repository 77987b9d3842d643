/*
 * st_edit.c - edits safetensors files for the test scripts.
 *
 *   st_edit IN.safetensors list                      the names, one a line
 *   st_edit IN.safetensors OUT.safetensors EDIT...   applies the edits in turn and writes what is left
 *       only:A,B  drop:A  copy:A=B (B gets the data of A)  flip:A (one bit of the data)  add:A=N (N bytes, U8)
 *       put:A=I:X,J:Y (elements I, J.. of a bfloat16 tensor become X, Y..)
 * Exit status 0, or 2 when something can not be done.
 */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void die(const char *what, const char *name)
{
    fprintf(stderr, "st_edit: %s: %s\n", name, what);
    exit(2);
}

/* name -> {dtype, shape, hex}: the data travel as hexadecimal text, the files are small. */
static json_t *load(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint64_t n;
    if (!f || fread(&n, 8, 1, f) != 1 || n > 1 << 24) die("cannot read", path);
    char *text = malloc(n);
    if (!text || fread(text, 1, n, f) != n) die("cannot read", path);
    json_t *head = json_loadb(text, n, 0, NULL), *all = json_object(), *v;
    const char *name;
    if (!head) die("bad header", path);
    json_object_foreach(head, name, v) {
        if (strcmp(name, "__metadata__") == 0) continue;
        long lo = (long)json_integer_value(json_array_get(json_object_get(v, "data_offsets"), 0));
        long hi = (long)json_integer_value(json_array_get(json_object_get(v, "data_offsets"), 1));
        char *hex = malloc((size_t)(hi - lo) * 2 + 1);
        if (!hex || fseek(f, (long)n + 8 + lo, SEEK_SET) != 0) die("cannot read", path);
        hex[0] = 0;
        for (long i = 0; i < hi - lo; i++) snprintf(hex + 2 * i, 3, "%02x", (unsigned)fgetc(f) & 255);
        json_object_set_new(all, name,
                            json_pack("{s:O, s:O, s:s}", "dtype", json_object_get(v, "dtype"), "shape",
                                      json_object_get(v, "shape"), "hex", hex));
        free(hex);
    }
    fclose(f);
    json_decref(head);
    free(text);
    return all;
}

static void save(const char *path, json_t *all)
{
    json_t *head = json_object(), *v;
    const char *name;
    long long at = 0;
    json_object_foreach(all, name, v) {
        long long end = at + (long long)json_string_length(json_object_get(v, "hex")) / 2;
        json_object_set_new(head, name,
                            json_pack("{s:O, s:O, s:[I, I]}", "dtype", json_object_get(v, "dtype"), "shape",
                                      json_object_get(v, "shape"), "data_offsets", (json_int_t)at,
                                      (json_int_t)end));
        at = end;
    }
    char *text = json_dumps(head, JSON_COMPACT);
    uint64_t n = text ? strlen(text) : 0;
    FILE *f = fopen(path, "wb");
    if (!f || !text || fwrite(&n, 8, 1, f) != 1 || fwrite(text, 1, n, f) != n) die("cannot write", path);
    json_object_foreach(all, name, v)
        for (const char *h = json_string_value(json_object_get(v, "hex")); *h; h += 2) {
            char byte[3] = {h[0], h[1], 0};
            fputc((int)strtol(byte, NULL, 16), f);
        }
    if (fclose(f) != 0) die("cannot write", path);
    free(text);
    json_decref(head);
}

static json_t *need(json_t *all, const char *name)
{
    json_t *v = json_object_get(all, name);
    if (!v) die("no such tensor", name);
    return v;
}

static void put(json_t *t, const char *name, char *list)
{
    json_t *hex = json_object_get(t, "hex");
    char *text = strdup(json_string_value(hex));
    if (!text || strcmp(json_string_value(json_object_get(t, "dtype")), "BF16") != 0) die("is not bfloat16", name);
    for (char *item = strtok(list, ","); item; item = strtok(NULL, ",")) {
        char *colon = strchr(item, ':'), byte[5];
        size_t at = (size_t)atol(item) * 4;
        float x = colon ? strtof(colon + 1, NULL) : 0;
        uint32_t bits;
        memcpy(&bits, &x, 4);
        if (!colon || at + 4 > strlen(text)) die("no such element", name);
        snprintf(byte, sizeof byte, "%02x%02x", bits >> 16 & 255, bits >> 24);
        memcpy(text + at, byte, 4);
    }
    json_string_set(hex, text);
    free(text);
}

static void edit(json_t *all, char *e)
{
    char *arg = strchr(e, ':');
    if (!arg) die("bad edit", e);
    *arg++ = 0;
    char *second = strchr(arg, '=');
    if (second) *second++ = 0;
    if (strcmp(e, "drop") == 0) {
        need(all, arg);
        json_object_del(all, arg);
    } else if (strcmp(e, "copy") == 0 && second)
        json_object_set_new(all, second, json_deep_copy(need(all, arg)));
    else if (strcmp(e, "flip") == 0) {
        json_t *hex = json_object_get(need(all, arg), "hex");
        char *text = strdup(json_string_value(hex));
        if (!text || !*text) die("no data", arg);
        text[1] = text[1] == '0' ? '1' : '0';
        json_string_set(hex, text);
        free(text);
    } else if (strcmp(e, "put") == 0 && second)
        put(need(all, arg), arg, second);
    else if (strcmp(e, "add") == 0 && second) {
        size_t n = (size_t)atol(second);
        char *zero = calloc(n * 2 + 1, 1);
        if (!zero) die("no memory", arg);
        memset(zero, '0', n * 2);
        json_object_set_new(all, arg,
                            json_pack("{s:s, s:[I], s:s}", "dtype", "U8", "shape", (json_int_t)n, "hex", zero));
        free(zero);
    } else if (strcmp(e, "only") == 0) {
        json_t *kept = json_object();
        for (char *name = strtok(arg, ","); name; name = strtok(NULL, ","))
            json_object_set(kept, name, need(all, name));
        json_object_clear(all);
        json_object_update(all, kept);
        json_decref(kept);
    } else die("bad edit", e);
}

int main(int argc, char **argv)
{
    if (argc < 3) die("IN and OUT, or IN list", "usage");
    json_t *all = load(argv[1]), *v;
    const char *name;
    if (strcmp(argv[2], "list") == 0) {
        json_object_foreach(all, name, v) puts(name);
    } else {
        for (int i = 3; i < argc; i++) edit(all, argv[i]);
        save(argv[2], all);
    }
    json_decref(all);
    return 0;
}
