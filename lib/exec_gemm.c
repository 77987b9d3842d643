/*
 * exec_gemm.c - large prompts on devices under --compute auto: linear operations by op_cuda_table.gemm (kernels/cuda_ops.h).
 *
 * From how many rows on is op_cuda_gemm_from's, so it depends on the number of rows alone (exec_gemm in exec_priv.h). Devices of compute
 * capability 9.0 have a second kernel for it, by wgmma. That kernel is only taken after a trial: when a context is opened, every
 * such device multiplies small integers both ways, which leaves nothing to rounding, and has to give the same numbers.
 */
#include "device.h"
#include "exec_priv.h"

/* Whether devices may and can: all ranks alike, since a sum over ranks takes one partial sum of each, or one of each leaf. */
tess_status gemm_allow(exec *x, tess_error *err)
{
    const device_list *d = comm_devices(x->comm);
    x->gemm = x->model->compute == TESS_COMPUTE_AUTO;
    for (uint32_t r = 0; x->gemm && r < d->n; r++) {
        device_props p;
        int code = device_get(d->id[r], &p);
        if (code) return devices_fail(d, r, "the device can not be used", code, err);
        x->gemm = p.major >= 8;
    }
    return TESS_OK;
}

/* ---- the trial: more than one block of threads both ways, two leaves, both ending inside a stage ---- */
enum { ROWS = 270, TOKENS = 140, LEAF = 72, COLUMNS = 2 * LEAF, STRIDE = LEAF * TILE_ROWS * 2 };
typedef struct {
    uint16_t w[2][ROWS / TILE_ROWS + 1][LEAF][TILE_ROWS]; /* bf16 */
    float x[TOKENS][COLUMNS];
    float y[2][TOKENS][ROWS];
} trial;

static uint16_t small_bf16(uint32_t i) /* -8 to 8 */
{
    const float v = (float)(i % 17) - 8;
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return (uint16_t)(u >> 16);
}

static void trial_fill(trial *t)
{
    uint16_t *w = &t->w[0][0][0][0];
    for (uint32_t i = 0; i < sizeof t->w / sizeof *w; i++) w[i] = small_bf16(i * 7 + i / 1000);
    for (uint32_t i = 0; i < TOKENS * COLUMNS; i++) t->x[i / COLUMNS][i % COLUMNS] = (float)((i * 5 + i / 700) % 13) - 6;
    memset(t->y, 0xff, sizeof t->y); /* NaN, until they are computed */
}

static int trial_run(const exec *x, trial *host, trial *dev, void *scratch, void *stream)
{
    const op_run runs[2] = {{.data = (const uint8_t *)dev->w[0], .block_stride = STRIDE, .n_rows = ROWS, .n_k = LEAF},
                            {.data = (const uint8_t *)dev->w[1], .block_stride = STRIDE, .n_rows = ROWS, .k0 = LEAF, .n_k = LEAF}};
    const op_weight w = {.dtype = DT_BF16, .n_rows = ROWS, .n_k = COLUMNS, .n_leaves = 2, .n_parts = 1, .runs = runs};
    op_gemm_args a = {.w = &w, .x = dev->x[0], .xs = COLUMNS, .n_tokens = TOKENS, .ys = ROWS, .scratch = scratch};
    int code = device_copy(dev, host, sizeof *host, stream);
    for (int i = 0; i < 2 && !code; i++) {
        a.y = dev->y[i][0], a.wide = i == 1;
        code = x->model->cuda->gemm(&a, stream);
    }
    if (!code) code = device_copy(host->y, dev->y, sizeof host->y, stream);
    return code ? code : device_stream_sync(stream);
}

/* *same: both ways gave these numbers, all of them. */
static int try_wide(const exec *x, void *stream, bool *same)
{
    const op_weight w = {.dtype = DT_BF16, .n_leaves = 2, .runs = (const op_run[]){{.n_k = LEAF}, {.n_k = LEAF}}};
    void *host = NULL, *dev = NULL, *scratch = NULL;
    int code = device_host_alloc(&host, sizeof(trial));
    if (!code) code = device_alloc(&dev, sizeof(trial));
    if (!code) code = device_alloc(&scratch, op_cuda_gemm_scratch(&w, TOKENS));
    if (!code) {
        trial *t = host;
        trial_fill(t);
        code = trial_run(x, t, dev, scratch, stream);
        *same = !code && memcmp(t->y[0], t->y[1], sizeof t->y[0]) == 0 && t->y[0][0][0] == t->y[0][0][0];
    }
    device_free(scratch);
    device_free(dev);
    device_host_free(host);
    return code;
}

/* ---- of a rank ---- */

tess_status gemm_open(exec *x, uint32_t r, tess_error *err)
{
    rank_state *k = &x->rank[r];
    size_t most = 0;
    for (uint32_t i = 0; x->gemm && i < x->body.n_code; i++) {
        if (x->body.code[i].op != PROG_LINEAR) continue;
        const op_weight *w = &exec_linear(x, k, &x->body.code[i])->w;
        if (x->max_rows >= op_cuda_gemm_from(w->dtype)) most = MAX(most, op_cuda_gemm_scratch(w, x->max_rows));
    }
    if (!most) return TESS_OK;
    int code = comm_select(x->comm, r);
    if (!code) code = device_alloc(&k->gemm, most);
    if (code) return device_no_memory(x, r, "large prompts", most, code, err);
    const bool wide = op_cuda_gemm_wide();
    if (wide) code = try_wide(x, comm_stream(x->comm, r), &k->gemm_wide);
    if (wide && !code && !k->gemm_wide)
        mem_log(&x->m, TESS_LOG_WARN, "%s: wgmma gives wrong numbers, mma is used instead", devices_name(comm_devices(x->comm), r).text);
    return code ? devices_fail(comm_devices(x->comm), r, "a trial of its tensor cores failed", code, err) : TESS_OK;
}

void gemm_close(rank_state *k)
{
    device_free(k->gemm);
    k->gemm = NULL;
}

void gemm_run(const exec *x, rank_state *k, const prog_instr *c, const op_linear_args *l)
{
    op_gemm_args a = {.w = l->w,
                      .bias = l->bias,
                      .x = l->x,
                      .xs = l->xs,
                      .n_tokens = l->n_tokens,
                      .y = l->y,
                      .ys = l->ys,
                      .scratch = k->gemm,
                      .wide = k->gemm_wide};
    a.x_ready = k->gemm_last && k->gemm_last + 1 == c && k->gemm_last->in[0] == c->in[0]; /* q, k and v; gate and up */
    if (!k->code) k->code = x->model->cuda->gemm(&a, k->stream);
}
