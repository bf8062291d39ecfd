#include "proto/control/descriptors.h"

#include <stdio.h>
#include <string.h>

// Made by embed.cmake from protoc's descriptor set.
extern const uint8_t proto_descriptors[];
extern const size_t proto_descriptors_bytes;

// Field numbers of descriptor.proto.
enum { SET_FILE = 1 };
enum { FILE_NAME = 1, FILE_PACKAGE = 2, FILE_IMPORT = 3, FILE_MESSAGE = 4, FILE_ENUM = 5, FILE_SERVICE = 6, FILE_EXTENSION = 7 };
enum { MESSAGE_FIELD = 2, MESSAGE_NESTED = 3, MESSAGE_ENUM = 4, MESSAGE_EXTENSION = 6, MESSAGE_ONEOF = 8 };
enum { DECLARED_NAME = 1, ENUM_VALUE = 2, SERVICE_METHOD = 2 };

enum kind { KIND_NONE, KIND_FILE, KIND_MESSAGE, KIND_ENUM, KIND_SERVICE, KIND_LEAF };

// The nth field `number` of a message; false past the last. The set is our own: that it can be read was settled when it was built.
static bool find_field(struct wire_span message, uint32_t number, size_t nth, struct wire_span *out) {
    struct wire_field field;
    while (message.length > 0) {
        err_t e = wire_read_field(&message, &field);
        INVARIANT(!err_is(e));
        if (field.number == number && field.type == WIRE_BYTES && nth-- == 0) {
            *out = field.span;
            return true;
        }
    }
    return false;
}

static struct wire_span field_or_empty(struct wire_span message, uint32_t number) {
    struct wire_span out = {0};
    return find_field(message, number, 0, &out) ? out : (struct wire_span){0};
}

static bool span_is(struct wire_span span, const char *text, size_t length) {
    return span.length == length && (length == 0 || memcmp(span.bytes, text, length) == 0);
}

struct wire_span descriptors_file(size_t index) {
    struct wire_span file = {0}, set = {proto_descriptors, proto_descriptors_bytes};
    return find_field(set, SET_FILE, index, &file) ? file : (struct wire_span){0};
}

size_t descriptors_count(void) {
    size_t count = 0;
    while (count < DESCRIPTOR_FILES_MAX && descriptors_file(count).length > 0) {
        count++;
    }
    return count;
}

bool descriptors_find_file(const char *name, size_t *index) {
    size_t count = descriptors_count();
    for (size_t i = 0; i < count; i++) {
        if (span_is(field_or_empty(descriptors_file(i), FILE_NAME), name, strlen(name))) {
            *index = i;
            return true;
        }
    }
    return false;
}

bool descriptors_import(size_t index, size_t nth, size_t *imported) {
    struct wire_span name;
    if (!find_field(descriptors_file(index), FILE_IMPORT, nth, &name)) {
        return false;
    }
    char text[DESCRIPTOR_NAME_MAX];
    snprintf(text, sizeof text, "%.*s", (int)name.length, (const char *)name.bytes);
    return descriptors_find_file(text, imported);
}

bool descriptors_service(size_t index, size_t nth, char name[DESCRIPTOR_NAME_MAX]) {
    struct wire_span file = descriptors_file(index), service;
    if (!find_field(file, FILE_SERVICE, nth, &service)) {
        return false;
    }
    struct wire_span package = field_or_empty(file, FILE_PACKAGE), last = field_or_empty(service, DECLARED_NAME);
    snprintf(name, DESCRIPTOR_NAME_MAX, "%.*s.%.*s", (int)package.length, (const char *)package.bytes, (int)last.length,
             (const char *)last.bytes);
    return true;
}

// What a field of a scope declares.
static enum kind declared_kind(enum kind scope, uint32_t number) {
    static const enum kind OF_FILE[] = {
        [FILE_MESSAGE] = KIND_MESSAGE, [FILE_ENUM] = KIND_ENUM, [FILE_SERVICE] = KIND_SERVICE, [FILE_EXTENSION] = KIND_LEAF};
    static const enum kind OF_MESSAGE[] = {[MESSAGE_FIELD] = KIND_LEAF,
                                           [MESSAGE_NESTED] = KIND_MESSAGE,
                                           [MESSAGE_ENUM] = KIND_ENUM,
                                           [MESSAGE_EXTENSION] = KIND_LEAF,
                                           [MESSAGE_ONEOF] = KIND_LEAF};
    switch (scope) {
    case KIND_FILE:
        return number < sizeof OF_FILE / sizeof *OF_FILE ? OF_FILE[number] : KIND_NONE;
    case KIND_MESSAGE:
        return number < sizeof OF_MESSAGE / sizeof *OF_MESSAGE ? OF_MESSAGE[number] : KIND_NONE;
    case KIND_SERVICE:
        return number == SERVICE_METHOD ? KIND_LEAF : KIND_NONE;
    default:
        return KIND_NONE;
    }
}

struct scope {
    enum kind kind;
    struct wire_span body;
};

static bool enum_has_value(struct wire_span body, const char *name, size_t length) {
    struct wire_span value;
    for (size_t i = 0; find_field(body, ENUM_VALUE, i, &value); i++) {
        if (span_is(field_or_empty(value, DECLARED_NAME), name, length)) {
            return true;
        }
    }
    return false;
}

// Moves into what `name` declares in the scope. An enum's values are named beside the enum, not below it.
static bool descend(struct scope *scope, const char *name, size_t length) {
    struct wire_span rest = scope->body;
    struct wire_field field;
    while (rest.length > 0) {
        err_t e = wire_read_field(&rest, &field);
        INVARIANT(!err_is(e));
        enum kind kind = field.type == WIRE_BYTES ? declared_kind(scope->kind, field.number) : KIND_NONE;
        if (kind == KIND_NONE) {
            continue;
        }
        if (span_is(field_or_empty(field.span, DECLARED_NAME), name, length)) {
            *scope = (struct scope){kind, field.span};
            return true;
        }
        if (kind == KIND_ENUM && enum_has_value(field.span, name, length)) {
            *scope = (struct scope){KIND_LEAF, field.span};
            return true;
        }
    }
    return false;
}

// The part of a full name behind the file's package; NULL where it is of another package.
static const char *behind_package(struct wire_span file, const char *symbol) {
    struct wire_span package = field_or_empty(file, FILE_PACKAGE);
    size_t length = package.length;
    bool inside = strlen(symbol) > length && span_is(package, symbol, length) && symbol[length] == '.';
    return inside ? symbol + length + 1 : NULL;
}

bool descriptors_find_symbol(const char *symbol, size_t *index, bool *is_message) {
    size_t count = descriptors_count();
    for (size_t i = 0; i < count; i++) {
        struct scope scope = {KIND_FILE, descriptors_file(i)};
        const char *rest = behind_package(scope.body, symbol);
        bool found = rest != NULL;
        while (found && rest) { // a name per turn
            size_t length = strcspn(rest, ".");
            found = descend(&scope, rest, length);
            rest = rest[length] ? rest + length + 1 : NULL;
        }
        if (found) {
            *index = i;
            *is_message = scope.kind == KIND_MESSAGE;
            return true;
        }
    }
    return false;
}
