#include "expert/checkpoint/checkpoint_notes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void checkpoint_notes_add(struct checkpoint_notes *notes, const char *kind, const char *format, ...) {
    size_t i = 0;
    while (i < notes->count && strcmp(notes->notes[i].kind, kind) != 0) {
        i++;
    }
    if (i == CHECKPOINT_NOTES_MAX) {
        return;
    }
    struct checkpoint_note *note = &notes->notes[i];
    if (i == notes->count) {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(note->text, sizeof note->text, format, args);
        va_end(args);
        note->kind = kind;
        notes->count++;
    }
    note->count++;
}
