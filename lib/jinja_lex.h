/* jinja_lex.h - template text to tokens, with the whitespace rules of trim_blocks and lstrip_blocks. */
#ifndef TESS_JINJA_LEX_H
#define TESS_JINJA_LEX_H
#include "jinja_value.h"

typedef enum {
    T_EOF, T_DATA, T_VAR_BEGIN, T_VAR_END, T_BLOCK_BEGIN, T_BLOCK_END, T_NAME, T_STRING, T_INT, T_FLOAT,
    T_PLUS, T_MINUS, T_MUL, T_DIV, T_FLOORDIV, T_MOD, T_POW, T_TILDE,
    T_LBRACKET, T_RBRACKET, T_LPAREN, T_RPAREN, T_LBRACE, T_RBRACE, T_EQ, T_NE, T_GT, T_GE, T_LT, T_LE,
    T_ASSIGN, T_DOT, T_COLON, T_PIPE, T_COMMA, T_SEMICOLON
} tok_type;

/* v: the text of DATA, NAME and STRING, the number of INT and FLOAT. */
typedef struct { uint8_t type; uint32_t line; val v; } jtok;
/* The whole template (valid UTF-8); the last token is T_EOF. Sets j->line to the place of an error. */
bool jinja_lex(jj *j, const char *s, size_t n, jtok **out, uint32_t *n_out);
#endif
