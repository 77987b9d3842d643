/*
 * convert_loss.c - how far what is stored lies from what a quantized source says.
 *
 * For each pair of source type and stored type: the root of the sum of squared differences over that of the squares of the
 * exact values, in which the source is dequantized in f32. Rows come from all threads in any order; sums are doubles, so the
 * three digits that are printed do not depend on it.
 */
#include "convert.h"

#include <math.h>
#include <stdlib.h>

void convert_loss_open(convert_loss *l)
{
    *l = (convert_loss){0};
    pthread_mutex_init(&l->lock, NULL);
}

void convert_loss_close(convert_loss *l) { pthread_mutex_destroy(&l->lock); }

void convert_loss_add(convert_loss *l, const char *type, uint32_t dtype, double error, double all)
{
    pthread_mutex_lock(&l->lock);
    uint32_t i = 0;
    while (i < l->n && (strcmp(l->sum[i].type, type) != 0 || l->sum[i].dtype != dtype)) i++;
    if (i == l->n && l->n < CONVERT_MAX_LOSS) {
        l->sum[i].type = type;
        l->sum[i].dtype = dtype;
        l->n++;
    }
    if (i < l->n) {
        l->sum[i].error += error;
        l->sum[i].all += all;
    }
    pthread_mutex_unlock(&l->lock);
}

void convert_loss_of(const float *exact, const float *stored, size_t n, double *error, double *all)
{
    for (size_t i = 0; i < n; i++) {
        double d = (double)stored[i] - (double)exact[i];
        *error += d * d;
        *all += (double)exact[i] * (double)exact[i];
    }
}

static int by_name(const void *x, const void *y)
{
    const convert_loss_sum *a = x, *b = y;
    int c = strcmp(a->type, b->type);
    return c ? c : (a->dtype > b->dtype) - (a->dtype < b->dtype);
}

void convert_loss_say(convert_loss *l, const mem *m, const char *src)
{
    qsort(l->sum, l->n, sizeof *l->sum, by_name); /* not in the order in which threads came */
    for (uint32_t i = 0; i < l->n; i++) {
        const char *type = l->sum[i].type, *stored = dtype_get(l->sum[i].dtype)->name;
        double rms = l->sum[i].all > 0 ? sqrt(l->sum[i].error / l->sum[i].all) : 0;
        if (l->sum[i].error == 0) mem_log(m, TESS_LOG_INFO, "%s: %s is stored as %s without loss", src, type, stored);
        else mem_log(m, TESS_LOG_INFO, "%s: %s is stored as %s, relative RMS error %.3g %%", src, type, stored, 100 * rms);
    }
}
