/*
 * fuzz_jinja.c - chat_render on any template, and on any JSON. The input is a template, optionally followed by
 * a zero byte and the JSON; without it a fixed conversation is used. Checked: the spans are ascending and
 * inside the text, which is UTF-8.
 */
#include <stdlib.h>

#include "chat.h"
#include "utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"h\\u00e9 "
    "<|x|>\"},{\"role\":\"assistant\","
    "\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,true]}}}]}],"
    "\"tools\":[{\"type\":\"function\"}],"
    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"variables\":{\"n\":7,\"l\":[3,1,2],\"s\":\"Hello "
    "World\",\"d\":{\"b\":1,\"a\":2}}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *zero = size ? memchr(text, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - text) : size, end = 0;
    chat_out out;
    tess_error err;
    tess_status st =
        zero ? chat_render(&mem_libc, text, n, zero + 1, size - n - 1, NULL, "</s>", &out, &err)
             : chat_render(&mem_libc, text, n, conversation, sizeof conversation - 1, NULL, "</s>", &out, &err);
    if (st == TESS_OK && !utf8_valid(out.text.data, out.text.len)) abort();
    for (size_t i = 0; i < out.n_plain; i++) {
        if (out.plain[i].len == 0 || out.plain[i].off < end ||
            !range_in(out.plain[i].off, out.plain[i].len, out.text.len))
            abort();
        end = out.plain[i].off + out.plain[i].len;
    }
    if (st < 0 && !err.text[0]) abort();
    chat_out_free(&mem_libc, &out);
    return 0;
}
