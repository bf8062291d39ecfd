#include "daemon/http/html_text.h"

void html_put_text(const char *text, FILE *body) {
    for (; *text; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", body);
            break;
        case '>':
            fputs("&gt;", body);
            break;
        case '&':
            fputs("&amp;", body);
            break;
        default:
            fputc(*text, body);
        }
    }
}
