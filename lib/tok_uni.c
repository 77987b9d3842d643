/* tok_uni.c - properties of characters that tokenizers ask for, on utf8proc. */
#include <utf8proc.h>

#include "tok_int.h"

static utf8proc_category_t category(uint32_t cp) { return utf8proc_category((utf8proc_int32_t)cp); }

bool uni_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= '\t' && cp <= '\r');
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static bool is_letter(utf8proc_category_t c) { return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO; }
static bool is_number(utf8proc_category_t c) { return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO; }
static bool is_mark(utf8proc_category_t c) { return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME; }

bool uni_is_numeric(uint32_t cp) { return cp < 0x80 ? cp >= '0' && cp <= '9' : is_number(category(cp)); }
bool uni_is_mark(uint32_t cp) { return cp >= 0x80 && is_mark(category(cp)); }
bool uni_is_mark_nonspacing(uint32_t cp) { return cp >= 0x80 && category(cp) == UTF8PROC_CATEGORY_MN; }

bool uni_is_other(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO;
}

bool uni_is_punct(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') || (cp >= '{' && cp <= '~');
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool uni_is_word(uint32_t cp)
{
    if (cp < 0x80) return (cp | 32) - 'a' < 26u || cp - '0' < 10u || cp == '_';
    utf8proc_category_t c = category(cp);
    if (is_letter(c) || is_mark(c)) return true;
    if (c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_PC) return true;
    /* joiners, and the symbols that count as letters (Other_Alphabetic) */
    return cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) ||
           (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189);
}

uint8_t uni_class(uint32_t cp)
{
    if (uni_is_space(cp)) return UNI_SPACE;
    utf8proc_category_t c = category(cp);
    return is_letter(c) ? UNI_LETTER : is_number(c) ? UNI_NUMBER : UNI_OTHER;
}

uint32_t uni_lower(uint32_t cp, uint32_t out[2])
{
    if (cp == 0x130) return out[0] = 'i', out[1] = 0x307, 2; /* the only one that becomes two */
    out[0] = cp < 0x80 ? (cp - 'A' < 26u ? cp + 32 : cp) : (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    return 1;
}

/* Printable Latin-1 stands for itself; the other 68 bytes are U+0100 and up in their order. */
static bool stands_for_itself(uint32_t b) { return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff); }

uint32_t uni_byte_char(uint8_t b)
{
    if (stands_for_itself(b)) return b;
    if (b <= 0x20) return 0x100u + b;
    return b < 0xa1 ? 0x100u + 0x21 + (b - 0x7fu) : 0x143; /* 7f..a0, ad */
}

int uni_char_byte(uint32_t cp)
{
    if (cp < 0x100) return stands_for_itself(cp) ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 0x7f);
    return cp == 0x143 ? 0xad : -1;
}
