/* A whole server over the demonstration model, and its answers as JSON. */
#ifndef SL_TESTS_SERVED_H
#define SL_TESTS_SERVED_H

#include "http_client.h"
#include "models.h"

#include "base/json.h"
#include "base/mem.h"
#include "service.h"

enum { SL_SERVED_CONTEXT = 512 };

/* Group fixtures: open and close the engine. */
int sl_served_set_up(void **state);
int sl_served_tear_down(void **state);

void sl_served_start(unsigned n_places, size_t queue);
void sl_served_stop(void);
/* Waits for a server that was told to stop. */
void sl_served_join(void);
sl_http *sl_served_http(void);
/* For the clients of http_client.h: only its port counts. */
const sl_test_server *sl_served(void);

/* Sends a request with a JSON body on a connection of its own. */
int sl_served_post(const char *path, const char *body);
/* The answer's JSON; json_decref it. Fails the test on another status. */
json_t *sl_served_ask(const char *path, const char *body, int status);
json_t *sl_served_parse(const char *text, size_t n);

/* A member by its path, "choices.0.message.content"; NULL when there is none. */
const json_t *sl_served_at(const json_t *value, const char *path);
const char *sl_served_text(const json_t *value, const char *path);
long long sl_served_number(const json_t *value, const char *path);
void sl_served_assert_text(const json_t *value, const char *path, const char *expected);

#endif
