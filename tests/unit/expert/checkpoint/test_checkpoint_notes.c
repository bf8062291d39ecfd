// The notes that the reading of a checkpoint leaves for the log.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "expert/checkpoint/checkpoint_notes.h"

static void a_kind_keeps_its_first_text_and_its_number(void **state) {
    (void)state;
    static struct checkpoint_notes notes;
    notes = (struct checkpoint_notes){0};
    checkpoint_notes_add(&notes, "stray_file", "%s is ignored", "model.safetensors");
    checkpoint_notes_add(&notes, "stray_file", "another is ignored");
    checkpoint_notes_add(&notes, "other", "text");
    assert_int_equal(notes.count, 2);
    assert_int_equal(notes.notes[0].count, 2);
    assert_string_equal(notes.notes[0].text, "model.safetensors is ignored");
    assert_int_equal(notes.notes[1].count, 1);
}

static void the_list_and_a_long_text_are_cut(void **state) {
    (void)state;
    static struct checkpoint_notes notes;
    static char kinds[CHECKPOINT_NOTES_MAX + 2][3], text[2 * CHECKPOINT_NOTE_TEXT_MAX];
    notes = (struct checkpoint_notes){0};
    memset(text, 'x', sizeof text - 1);
    for (size_t i = 0; i < CHECKPOINT_NOTES_MAX + 2; i++) {
        kinds[i][0] = (char)('a' + i / 26), kinds[i][1] = (char)('a' + i % 26);
        checkpoint_notes_add(&notes, kinds[i], "%s", text);
    }
    assert_int_equal(notes.count, CHECKPOINT_NOTES_MAX);
    assert_int_equal(strlen(notes.notes[0].text), CHECKPOINT_NOTE_TEXT_MAX - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kind_keeps_its_first_text_and_its_number),
        cmocka_unit_test(the_list_and_a_long_text_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
