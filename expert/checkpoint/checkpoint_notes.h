// Oddities of a checkpoint that is served all the same: an entry of config.json that its tensors contradict, a file that is
// ignored. The log shows each kind once, as a warning with its number and the first text (event checkpoint_note). Written by the
// thread that opens the checkpoint and finds its layers. Private to expert/, except that the daemon reads them.
#ifndef EXPERTD_EXPERT_CHECKPOINT_CHECKPOINT_NOTES_H
#define EXPERTD_EXPERT_CHECKPOINT_CHECKPOINT_NOTES_H

#include <stddef.h>
#include <stdint.h>

enum { CHECKPOINT_NOTES_MAX = 32, CHECKPOINT_NOTE_TEXT_MAX = 768 };

struct checkpoint_note {
    const char *kind;                    // a constant in snake_case: "excluded_but_quantised"
    uint64_t count;                      // how often it was added
    char text[CHECKPOINT_NOTE_TEXT_MAX]; // of the first: the thing, the place, what is done
};

struct checkpoint_notes {
    size_t count;
    struct checkpoint_note notes[CHECKPOINT_NOTES_MAX];
};

// `kind` is borrowed: a literal. The text may come from the file: its reader quotes it. More than CHECKPOINT_NOTES_MAX kinds: the
// note is dropped.
void checkpoint_notes_add(struct checkpoint_notes *notes, const char *kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
