/* run_options.c - see run_options.h. One table describes every option: spellings, help, and what llama.cpp and vLLM call it. */
#include "run_options.h"

#include <math.h>
#include <string.h>

enum {
    O_MODEL = 1, O_PROMPT, O_FILE, O_BINARY_FILE, O_PROMPT_IDS, O_SYSTEM, O_SYSTEM_FILE, O_TEMPLATE, O_TEMPLATE_FILE, O_RAW,
    O_ESCAPE, O_N, O_TEMP, O_TOP_K, O_TOP_P, O_MIN_P, O_REPEAT, O_REPEAT_LAST, O_PRESENCE, O_FREQUENCY, O_SEED, O_STOP,
    O_STOP_ID, O_IGNORE_EOS, O_ECHO, O_SPECIAL, O_OUT, O_PRINT_IDS, O_LOGITS, O_VERBOSE, O_TP, O_DEVICES, O_SPLIT, O_KV,
    O_COMPUTE, O_THREADS, O_CTX, O_CHUNK, O_PAGE, O_VERIFY, O_NO_VERIFY, O_TOKENIZE, O_DETOKENIZE, O_ADD_SPECIAL, O_RENDER,
    O_PPL, O_KL, O_LIST_DEVICES, O_STREAM, O_VERSION, O_HELP, O_NOTHING, O_NOTHING_VALUE
};

static const cli_option options[] = {
    {NULL, 0, NULL, "prompt"},
    {"-m --model", O_MODEL, "FILE", "the model (.tess); also as a plain argument"},
    {"-p --prompt", O_PROMPT, "TEXT", "the prompt; \"-\" reads stdin, as does a pipe when no prompt is given"},
    {"-f --file", O_FILE, "FILE", "prompt from a file; one newline at its end is dropped"},
    {"-bf --binary-file", O_BINARY_FILE, "FILE", "prompt from a file, every byte as it is"},
    {"--prompt-ids", O_PROMPT_IDS, "1,2,3", "prompt as token ids, taken as they are"},
    {"-sys --system-prompt", O_SYSTEM, "TEXT", "system message (needs a chat template)"},
    {"-sysf --system-prompt-file", O_SYSTEM_FILE, "FILE", "system message from a file"},
    {"--raw", O_RAW, NULL, "complete the prompt as it is, without the model's chat template;\nspecial tokens in the text then count as such"},
    {"--chat-template", O_TEMPLATE, "TEXT", "use this template (Jinja) instead of the model's"},
    {"--chat-template-file", O_TEMPLATE_FILE, "FILE", "the same from a file"},
    {"-e --escape", O_ESCAPE, NULL, "turn \\n, \\t, \\r, \\\\, \\\" and \\' of -p into the characters"},

    {NULL, 0, NULL, "generation (defaults: the model's generation_config, else the values shown)"},
    {"-n --predict --n-predict --max-tokens --max-new-tokens", O_N, "N", "tokens to generate; -1 (default): to the end of the text or of the context"},
    {"--temp --temperature", O_TEMP, "F", "temperature, 0 = always the most likely token (0.8)"},
    {"--top-k", O_TOP_K, "N", "only the N most likely tokens; 0 = off (40)"},
    {"--top-p", O_TOP_P, "F", "only the most likely tokens that add up to F; 1 = off (0.95)"},
    {"--min-p", O_MIN_P, "F", "only tokens at least F times as likely as the first; 0 = off (0.05)"},
    {"--repeat-penalty --repetition-penalty", O_REPEAT, "F", "1 = off (1)"},
    {"--repeat-last-n", O_REPEAT_LAST, "N", "ids that --repeat-penalty looks back; -1 = all, 0 = off (64)"},
    {"--presence-penalty", O_PRESENCE, "F", "0 = off (0)"},
    {"--frequency-penalty", O_FREQUENCY, "F", "0 = off (0)"},
    {"-s --seed --random-seed", O_SEED, "N", "same seed, same text; -1 (default): a new one, which -v prints"},
    {"--stop -r --reverse-prompt", O_STOP, "TEXT", "stop before this text; may be given several times"},
    {"--stop-id --stop-token-id", O_STOP_ID, "ID", "stop at this token as well; may be given several times"},
    {"--ignore-eos", O_IGNORE_EOS, NULL, "generate on after the model's end tokens"},

    {NULL, 0, NULL, "output (stdout holds the text only)"},
    {"-o --output-file", O_OUT, "FILE", "write the text there instead of to stdout"},
    {"--echo", O_ECHO, NULL, "print the prompt first"},
    {"-sp --special", O_SPECIAL, NULL, "print special tokens too"},
    {"-v --verbose", O_VERBOSE, NULL, "times, rates, memory and the seed on stderr"},
    {"--print-ids", O_PRINT_IDS, NULL, "print the generated ids, separated by commas, instead of text"},
    {"--logits", O_LOGITS, "OUT.npy", "write the logits after each id of prompt and output: float32 [ids, vocabulary];\nwith --ppl: those of every prediction"},

    {NULL, 0, NULL, "machine"},
    {"--tp -tp --tensor-parallel-size", O_TP, "R", "tensor-parallel ranks, 1 to 8 (all devices; 1 on the CPU)"},
    {"--devices --device -dev", O_DEVICES, "LIST", "cpu; cuda:0,1: one rank on each, a device named twice has two;\ncuda: all devices (cpu)"},
    {"--split -ts --tensor-split", O_SPLIT, "3,1", "share of the weights of each rank"},
    {"--stream", O_STREAM, "WHEN", "keep the layers in memory of the host and copy each to its device when it is run:\non, off, auto: where they do not fit (auto)"},
    {"-t --threads", O_THREADS, "N", "CPU threads over all ranks (all CPUs that the process may use)"},
    {"-c --ctx-size --max-model-len --context-length", O_CTX, "N", "context in tokens, such as 4096 or 32K (the model's)"},
    {"--kv -ctk --kv-cache-dtype", O_KV, "TYPE", "KV cache: f32, f16, int8 (auto: f16)"},
    {"--page", O_PAGE, "N", "tokens in a page of the KV cache: 16, 32, 64 (32)"},
    {"-ub --ubatch-size", O_CHUNK, "N", "tokens of the prompt that are computed at once (512)"},
    {"--compute", O_COMPUTE, "HOW", "auto, exact (the same bits for any cut, company and ranks), f32"},
    {"--no-verify", O_NO_VERIFY, NULL, "do not check the hashes of the weights while loading"},
    {"--verify --check-tensors", O_VERIFY, NULL, "check them (default)"},

    {NULL, 0, NULL, "other work"},
    {"--tokenize", O_TOKENIZE, NULL, "stdin: text, stdout: JSON array of its ids"},
    {"--add-special", O_ADD_SPECIAL, NULL, "with --tokenize: also what the tokenizer puts around a text, such as a BOS"},
    {"--detokenize", O_DETOKENIZE, NULL, "stdin: JSON array of ids, stdout: text, special tokens as well"},
    {"--render-chat", O_RENDER, NULL, "stdin: JSON {messages, template, add_generation_prompt, bos_token, eos_token,\nvariables, tools}, stdout: what the template makes of it; -m is optional"},
    {"--ppl", O_PPL, "FILE", "perplexity of a text, or of {\"windows\": [[ids]]}; prints JSON"},
    {"--kl --kl-divergence-base", O_KL, "REF.npy", "with --ppl: also the KL divergence from the logits that --ppl with --logits wrote,\nfor the same text"},
    {"--list-devices", O_LIST_DEVICES, NULL, "what --devices can name here"},
    {"--version", O_VERSION, NULL, "version and what the library was built with"},
    {"-h --help", O_HELP, NULL, "this text"},

    /* What scripts written for llama.cpp pass, and what is so here anyway. */
    {"-no-cnv --no-conversation", O_RAW, NULL, NULL},
    {"-cnv --conversation -st --single-turn --jinja --no-display-prompt --no-warmup", O_NOTHING, NULL, NULL},
    {"-fa --flash-attn -b --batch-size", O_NOTHING_VALUE, "VALUE", NULL},
    {"-ctv --cache-type-v", O_KV, "TYPE", NULL},
};

static const char *const kv_words[] = {"auto", "f32", "f16", "int8", "q8_0"};
static const int32_t kv_values[] = {TESS_KV_AUTO, TESS_KV_F32, TESS_KV_F16, TESS_KV_INT8, TESS_KV_INT8};
static const char *const compute_words[] = {"auto", "exact", "f32"};
static const int32_t compute_values[] = {TESS_COMPUTE_AUTO, TESS_COMPUTE_EXACT, TESS_COMPUTE_F32};
static const char *const stream_words[] = {"auto", "on", "off"};
static const int32_t stream_values[] = {TESS_STREAM_AUTO, TESS_STREAM_ON, TESS_STREAM_OFF};
static const char *const page_words[] = {"16", "32", "64"};

static bool set_choice(const char *name, const char *v, const char *const *words, const int32_t *values, size_t n, int32_t *out)
{
    int i;
    if (!cli_choice(name, v, words, n, &i)) return false;
    *out = values[i];
    return true;
}
static bool set_u32(const char *name, const char *v, uint64_t lo, uint64_t hi, uint32_t *out)
{
    uint64_t u;
    if (!cli_size(name, v, lo, hi, &u)) return false;
    *out = (uint32_t)u;
    return true;
}
static bool set_i32(const char *name, const char *v, int64_t lo, int64_t hi, int32_t *out)
{
    int64_t i;
    if (!cli_int(name, v, lo, hi, &i)) return false;
    *out = (int32_t)i;
    return true;
}

static bool add_stop(run_options *o, const char *name, const char *v)
{
    if (o->n_stop == RUN_MAX_STOPS || !*v) {
        cli_error(*v ? "%s: more than %d stop texts" : "%s: the text is empty (at most %d texts)", name, RUN_MAX_STOPS);
        return false;
    }
    o->stop[o->n_stop++] = v;
    return true;
}
static bool add_stop_id(run_options *o, const char *name, const char *v)
{
    if (o->n_stop_id == RUN_MAX_STOPS) {
        cli_error("%s: more than %d stop ids", name, RUN_MAX_STOPS);
        return false;
    }
    return set_i32(name, v, 0, INT32_MAX, &o->stop_id[o->n_stop_id++]);
}

static bool set_threads(run_options *o, const char *name, const char *v)
{
    int32_t n = 0;
    if (strcmp(v, "-1") && !set_i32(name, v, 1, 1024, &n)) return false; /* -1 as in llama.cpp: all CPUs */
    o->threads = (uint32_t)n;
    return true;
}
static bool set_page(run_options *o, const char *name, const char *v)
{
    int i;
    if (!cli_choice(name, v, page_words, 3, &i)) return false;
    o->page = 16u << i;
    return true;
}

/* Options of how to generate; false after an error line. */
static bool set_sampling(run_options *o, int id, const char *name, const char *v)
{
    switch (id) {
    case O_N: return cli_int(name, v, -1, UINT32_MAX - 1, &o->n_predict);
    case O_TEMP: return cli_float(name, v, 0, 1e30, &o->temperature);
    case O_TOP_K: return set_i32(name, v, -1, INT32_MAX, &o->top_k);
    case O_TOP_P: return cli_float(name, v, 0, 1, &o->top_p);
    case O_MIN_P: return cli_float(name, v, 0, 1, &o->min_p);
    case O_REPEAT: return cli_float(name, v, 0.01, 100, &o->repeat_penalty);
    case O_REPEAT_LAST: return set_i32(name, v, -1, INT32_MAX, &o->repeat_last_n);
    case O_PRESENCE: return cli_float(name, v, -100, 100, &o->presence_penalty);
    case O_FREQUENCY: return cli_float(name, v, -100, 100, &o->frequency_penalty);
    case O_SEED: return cli_int(name, v, -1, INT64_MAX, &o->seed);
    case O_STOP: return add_stop(o, name, v);
    default: return add_stop_id(o, name, v);
    }
}

/* Options of the machine; false after an error line. */
static bool set_machine(run_options *o, int id, const char *name, const char *v)
{
    switch (id) {
    case O_TP: return set_u32(name, v, 1, 8, &o->ranks);
    case O_DEVICES: o->devices = v; return true;
    case O_SPLIT: o->split = v; return true;
    case O_THREADS: return set_threads(o, name, v);
    case O_CTX: return set_u32(name, v, 1, INT32_MAX, &o->ctx_size);
    case O_CHUNK: return set_u32(name, v, 1, 1 << 20, &o->chunk);
    case O_STREAM: return set_choice(name, v, stream_words, stream_values, 3, &o->stream);
    case O_PAGE: return set_page(o, name, v);
    case O_KV: return set_choice(name, v, kv_words, kv_values, 5, &o->kv);
    default: return set_choice(name, v, compute_words, compute_values, 3, &o->compute);
    }
}

static bool set_mode(run_options *o, run_mode mode)
{
    if (o->mode != RUN_GENERATE && o->mode != mode) {
        cli_error("only one of --tokenize, --detokenize, --render-chat, --ppl and --list-devices can be done at once");
        return false;
    }
    o->mode = mode;
    return true;
}

static bool set_option(run_options *o, int id, const char *name, const char *v)
{
    switch (id) {
    case CLI_POSITIONAL:
        if (o->model) {
            cli_error("unexpected argument \"%s\"; the prompt is given with -p", v);
            return false;
        }
        o->model = v;
        return true;
    case O_MODEL: o->model = v; return true;
    case O_PROMPT: o->prompt = v; return true;
    case O_FILE:
    case O_BINARY_FILE: o->prompt_file = v; o->file_as_is = id == O_BINARY_FILE; return true;
    case O_PROMPT_IDS: o->prompt_ids = v; return true;
    case O_SYSTEM: o->system = v; return true;
    case O_SYSTEM_FILE: o->system_file = v; return true;
    case O_TEMPLATE: o->template_text = v; return true;
    case O_TEMPLATE_FILE: o->template_file = v; return true;
    case O_RAW: o->raw = true; return true;
    case O_ESCAPE: o->escape = true; return true;
    case O_IGNORE_EOS: o->ignore_eos = true; return true;
    case O_ECHO: o->echo = true; return true;
    case O_SPECIAL: o->special = true; return true;
    case O_OUT: o->out_file = v; return true;
    case O_PRINT_IDS: o->print_ids = true; return true;
    case O_LOGITS: o->logits_file = v; return true;
    case O_VERBOSE: o->verbose = true; return true;
    case O_VERIFY: o->no_verify = false; return true;
    case O_NO_VERIFY: o->no_verify = true; return true;
    case O_TOKENIZE: return set_mode(o, RUN_TOKENIZE);
    case O_DETOKENIZE: return set_mode(o, RUN_DETOKENIZE);
    case O_ADD_SPECIAL: o->add_special = true; return true;
    case O_RENDER: return set_mode(o, RUN_RENDER_CHAT);
    case O_PPL: o->ppl_file = v; return set_mode(o, RUN_PPL);
    case O_KL: o->kl_file = v; return true;
    case O_LIST_DEVICES: return set_mode(o, RUN_LIST_DEVICES);
    case O_NOTHING:
    case O_NOTHING_VALUE: return true;
    default: return id >= O_N && id <= O_STOP_ID ? set_sampling(o, id, name, v) : set_machine(o, id, name, v);
    }
}

static bool consistent(const run_options *o)
{
    const char *why = NULL;
    if (!!o->prompt + !!o->prompt_file + !!o->prompt_ids > 1) why = "only one of -p, -f, -bf and --prompt-ids can be given";
    else if (o->system && o->system_file) why = "only one of -sys and -sysf can be given";
    else if (o->template_text && o->template_file) why = "only one of --chat-template and --chat-template-file can be given";
    else if ((o->system || o->system_file) && (o->raw || o->prompt_ids))
        why = "a system message goes with a chat prompt, not with --raw or --prompt-ids";
    else if ((o->template_text || o->template_file) && (o->raw || o->prompt_ids))
        why = "a chat template goes with a chat prompt, not with --raw or --prompt-ids";
    else if (o->kl_file && o->mode != RUN_PPL) why = "--kl goes with --ppl FILE, the text that the logits were made from";
    else if (o->kl_file && o->logits_file) why = "only one of --kl and --logits can be given";
    else if (o->mode != RUN_GENERATE && (o->prompt || o->prompt_file || o->prompt_ids)) 
        why = "-p, -f, -bf and --prompt-ids are for generating; the input of --tokenize, --detokenize and --render-chat comes from stdin";
    else if (o->out_file && o->logits_file && strcmp(o->out_file, o->logits_file) == 0) why = "-o and --logits name the same file";
    else if (!o->model && o->mode != RUN_LIST_DEVICES && o->mode != RUN_RENDER_CHAT)
        why = "no model is given: run-model -m MODEL.tess -p PROMPT; --help tells more";
    if (why) cli_error("%s", why);
    return !why;
}

static void print_help(void)
{
    fputs("usage: run-model -m MODEL.tess -p PROMPT [options]\n"
          "Generates text with a language model and writes it to stdout.\n\n", stdout);
    cli_help(stdout, options, sizeof options / sizeof *options);
    fputs("\nexit codes: 0 done, 1 usage, 2 file or format, 3 memory, 4 device, 5 generation failed, 130 interrupted\n", stdout);
}

int run_options_parse(run_options *o, int argc, char **argv)
{
    *o = (run_options){.n_predict = -1, .temperature = NAN, .top_p = NAN, .min_p = NAN, .repeat_penalty = NAN,
                       .presence_penalty = NAN, .frequency_penalty = NAN, .top_k = RUN_UNSET, .repeat_last_n = RUN_UNSET, .seed = -1};
    cli_parser p;
    const char *value;
    cli_start(&p, "run-model", options, sizeof options / sizeof *options, argc, argv);
    for (int id; (id = cli_next(&p, &value)) != CLI_END;) {
        if (id == CLI_BAD) return CLI_EXIT_USAGE;
        if (id == O_HELP) return print_help(), cli_flush();
        if (id == O_VERSION) return cli_version(p.program);
        if (!set_option(o, id, p.name, value)) return CLI_EXIT_USAGE;
    }
    return consistent(o) ? -1 : CLI_EXIT_USAGE;
}
