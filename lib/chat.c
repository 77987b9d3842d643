/*
 * chat.c - renders a chat template over the JSON of a conversation. See chat.h.
 *
 * The variables are those of Hugging Face: messages, tools, documents (None when absent),
 * add_generation_prompt, bos_token, eos_token (undefined when absent), and whatever "variables" holds. Only
 * text below messages, tools and documents is untrusted. Everything of a render lives in one arena.
 */
#include "chat.h"

#include "jinja_eval.h"
#include "jinja_json.h"
#include "utf8.h"

static tess_status bad_arg(jj *j, const char *what)
{
    return j->st = ERR(j->err, TESS_E_ARG, "chat json: %s", what);
}
static bool set_var(jj *j, jsyms *syms, jframe *f, const jstr *name, val v)
{
    const jsym *sym = name ? jsym_get(syms, name) : NULL;
    return sym && jinja_frame_set(j, f, sym, v);
}

static tess_status check_input(jj *j, const jdict *d)
{
    static const struct {
        const char *key;
        jtype type;
        bool may_null;
        const char *what;
    } known[] = {{"messages", V_LIST, false, "\"messages\" must be an array"},
                 {"add_generation_prompt", V_BOOL, false, "\"add_generation_prompt\" must be true or false"},
                 {"bos_token", V_STR, true, "\"bos_token\" must be a string"},
                 {"eos_token", V_STR, true, "\"eos_token\" must be a string"},
                 {"tools", V_LIST, true, "\"tools\" must be an array"},
                 {"documents", V_LIST, true, "\"documents\" must be an array"},
                 {"variables", V_DICT, false, "\"variables\" must be an object"},
                 {"template", V_STR, true, "\"template\" must be a string"}};
    for (uint32_t i = 0; i < d->n; i++) {
        size_t k = 0;
        while (k < ARRAY_LEN(known) && !str_is(d->e[i].k.u.s, known[k].key)) k++;
        if (k == ARRAY_LEN(known)) {
            const jstr *name = d->e[i].k.u.s;
            return j->st =
                       ERR(j->err, TESS_E_ARG,
                           "chat json: unknown key \"%.*s\"; put values for the template into \"variables\"",
                           (int)MIN(name->len, 100u), name->s);
        }
        if (d->e[i].v.type != known[k].type && !(known[k].may_null && d->e[i].v.type == V_NONE))
            return bad_arg(j, known[k].what);
    }
    return dict_get(j, d, "messages") ? TESS_OK : bad_arg(j, "\"messages\" is missing");
}

static bool set_token(jj *j, jsyms *syms, jframe *f, const jdict *d, const char *key, const char *def)
{
    const val *given = dict_get(j, d, key);
    val v = given ? *given : v_none();
    if (!given && def && !v_lit(j, def, &v)) return false;
    return v.type != V_STR || set_var(j, syms, f, str_lit(j, key), v);
}

/* Fills the outermost frame. What is named explicitly wins over "variables". */
static bool set_variables(jj *j, jsyms *syms, jframe *f, const jdict *d, const char *def_bos,
                          const char *def_eos)
{
    static const char *const lists[] = {"messages", "tools", "documents"};
    const val *vars = dict_get(j, d, "variables"), *gen = dict_get(j, d, "add_generation_prompt");
    if (!set_token(j, syms, f, d, "bos_token", def_bos) || !set_token(j, syms, f, d, "eos_token", def_eos))
        return false;
    for (uint32_t i = 0; vars && i < vars->u.d->n; i++)
        if (!set_var(j, syms, f, vars->u.d->e[i].k.u.s, vars->u.d->e[i].v)) return false;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        const val *v = dict_get(j, d, lists[i]);
        bool from_vars = !v && vars && dict_get(j, vars->u.d, lists[i]);
        if (!from_vars && !set_var(j, syms, f, str_lit(j, lists[i]), v ? *v : v_none())) return false;
    }
    bool from_vars = !gen && vars && dict_get(j, vars->u.d, "add_generation_prompt");
    return from_vars || set_var(j, syms, f, str_lit(j, "add_generation_prompt"), gen ? *gen : v_bool(false));
}

/* The template of the json wins over the caller's. */
static bool choose_template(jj *j, const jdict *d, const char **tmpl, size_t *len)
{
    const val *own = dict_get(j, d, "template");
    if (own && own->type == V_STR) {
        *tmpl = own->u.s->s;
        *len = own->u.s->len;
    }
    if (!*tmpl) bad_arg(j, "there is no chat template: the model has none, and \"template\" is not given");
    else if (*len > JJ_MAX_TEMPLATE)
        j->st = ERR(j->err, TESS_E_TEMPLATE, "chat template has %zu bytes, at most %d are allowed", *len,
                    JJ_MAX_TEMPLATE);
    return j->st >= 0;
}

/* Text and its marks to the caller's memory. */
static tess_status copy_out(const mem *m, const sb *b, chat_out *out, tess_error *err)
{
    size_t n = 0;
    for (size_t i = 0; b->t && i < b->len; i++) n += b->t[i] && (i == 0 || !b->t[i - 1]);
    buf_init(&out->text, m);
    out->plain = mem_calloc(m, n, sizeof *out->plain);
    if (!out->plain || !buf_put(&out->text, b->s, b->len) || !buf_putc(&out->text, 0)) {
        chat_out_free(m, out);
        return ERR(err, TESS_E_NOMEM, "out of memory for %zu bytes of a rendered chat", b->len);
    }
    out->text.len = b->len; /* a zero byte stands behind the text */
    for (size_t i = 0; b->t && i < b->len; i++) {
        if (!b->t[i]) continue;
        if (i == 0 || !b->t[i - 1]) out->plain[out->n_plain++] = (chat_span){i, 0};
        out->plain[out->n_plain - 1].len++;
    }
    return TESS_OK;
}

tess_status chat_render(const mem *m, const char *tmpl, size_t tmpl_len, const char *json, size_t json_len,
                        const char *def_bos, const char *def_eos, chat_out *out, tess_error *err)
{
    static const char *const untrusted[] = {"messages", "tools", "documents", NULL};
    jj j = {.err = err, .line = 1};
    val input;
    node *root;
    *out = (chat_out){0};
    buf_init(&out->text, m);
    if (tmpl && !utf8_valid(tmpl, tmpl_len))
        return ERR(err, TESS_E_TEMPLATE, "chat template is not valid UTF-8");
    if ((def_bos && !utf8_valid(def_bos, strlen(def_bos))) ||
        (def_eos && !utf8_valid(def_eos, strlen(def_eos))))
        return ERR(err, TESS_E_ARG, "the bos or eos token is not valid UTF-8");
    arena_init(&j.a, m);
    sb text = {.j = &j};
    jsyms *syms = jj_alloc(&j, 1, sizeof *syms);
    jframe *frame = jinja_frame_new(&j, NULL);
    if (!syms || !frame || jinja_json_parse(&j, json, json_len, untrusted, &input) < 0) goto done;
    syms->j = &j;
    if (input.type != V_DICT) bad_arg(&j, "must be an object");
    if (j.st < 0 || check_input(&j, input.u.d) < 0) goto done;
    j.steps = 0;
    if (!set_variables(&j, syms, frame, input.u.d, def_bos, def_eos)) goto done;
    if (!choose_template(&j, input.u.d, &tmpl, &tmpl_len)) goto done;
    if (!jinja_parse(&j, syms, tmpl, tmpl_len, &root) || !jinja_run(&j, frame, root, &text)) goto done;
    j.st = copy_out(m, &text, out, err);
done:
    arena_free(&j.a);
    return j.st;
}

void chat_out_free(const mem *m, chat_out *out)
{
    mem_free(m, out->plain);
    mem_free(m, out->text.data);
    *out = (chat_out){0};
}
