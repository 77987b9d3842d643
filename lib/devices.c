/* devices.c - see devices.h. */
#include "devices.h"
#include "device.h"

#include <stdio.h>

static tess_status bad_text(const char *text, tess_error *err)
{
    return ERR(err, TESS_E_ARG, "devices \"%s\" must be cpu, cuda, or numbers of devices such as cuda:0,1 (at most %d)", text, MAX_RANKS);
}

/* "0,1,1": numbers below 1000. */
static tess_status parse_numbers(const char *text, const char *p, device_list *out, tess_error *err)
{
    do {
        uint32_t v = 0, digits = 0;
        for (; *p >= '0' && *p <= '9' && digits < 3; p++, digits++) v = v * 10 + (uint32_t)(*p - '0');
        if (digits == 0 || out->n == MAX_RANKS) return bad_text(text, err);
        out->id[out->n++] = v;
    } while (*p++ == ',');
    return p[-1] == 0 ? TESS_OK : bad_text(text, err);
}

tess_status devices_parse(const char *text, uint32_t n_ranks, device_list *out, uint32_t *ranks, tess_error *err)
{
    uint32_t have = 0, want = 0;
    *out = (device_list){0};
    *ranks = n_ranks ? n_ranks : 1;
    if (n_ranks > MAX_RANKS) return ERR(err, TESS_E_ARG, "%u ranks asked for; 1 to %d are possible", n_ranks, MAX_RANKS);
    if (!text || strcmp(text, "cpu") == 0) return TESS_OK;
    if (strncmp(text, "cuda", 4) != 0 || (text[4] != 0 && text[4] != ':')) return bad_text(text, err);
    if (text[4]) TRY(parse_numbers(text, text + 5, out, err));
    if (!device_built()) return ERR(err, TESS_E_DEVICE, "devices \"%s\": this program was built without CUDA; use cpu", text);
    int code = device_count(&have);
    if (have == 0)
        return ERR(err, TESS_E_DEVICE, "devices \"%s\": no CUDA device can be used here (%s); use cpu", text,
                   code ? device_error(code) : "there is none");
    if (!text[4])
        while (out->n < MIN(have, (uint32_t)MAX_RANKS)) out->id[out->n] = out->n, out->n++;
    for (uint32_t i = 0; i < out->n; i++) want = MAX(want, out->id[i] + 1);
    if (want > have)
        return ERR(err, TESS_E_DEVICE, "devices \"%s\" needs %u CUDA device%s, this machine has %u", text, want,
                   want == 1 ? "" : "s", have);
    if (n_ranks > out->n)
        return ERR(err, TESS_E_DEVICE, "%u ranks asked for, but devices \"%s\" names %u; name a device twice to give it two ranks",
                   n_ranks, text, out->n);
    if (n_ranks) out->n = n_ranks;
    *ranks = out->n;
    return TESS_OK;
}

device_name devices_name(const device_list *d, uint32_t rank)
{
    device_name n;
    snprintf(n.text, sizeof n.text, "rank %u (cuda:%u)", rank, d->id[rank]);
    return n;
}

tess_status devices_fail(const device_list *d, uint32_t rank, const char *what, int code, tess_error *err)
{
    tess_status st = ERR(err, TESS_E_DEVICE, "%s: %s: %s", devices_name(d, rank).text, what, device_error(code));
    if (err) err->os_code = code;
    return st;
}
