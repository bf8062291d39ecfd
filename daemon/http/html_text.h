// Text in the HTML pages.
#ifndef EXPERTD_DAEMON_HTTP_HTML_TEXT_H
#define EXPERTD_DAEMON_HTTP_HTML_TEXT_H

#include <stdio.h>

// Writes text between tags: '<', '>' and '&' as entities. Not for attributes.
void html_put_text(const char *text, FILE *body);

#endif
