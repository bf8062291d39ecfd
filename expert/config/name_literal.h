// A text that every match of a regular expression contains. Most names do not contain it, and searching a text takes a fiftieth of
// the time of a match: a checkpoint of 50000 modules may have an expression for each of its layers. Pure functions. Private to
// expert/config/.
#ifndef EXPERTD_EXPERT_CONFIG_NAME_LITERAL_H
#define EXPERTD_EXPERT_CONFIG_NAME_LITERAL_H

enum { NAME_LITERAL_MAX = 64 };

// The longest such text outside of groups, cut to fit; "": none is known, as with alternatives or flags.
void name_literal_of(const char *expression, char out[NAME_LITERAL_MAX]);

#endif
