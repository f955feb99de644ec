/* A chat that goes on in two ways: one question, then the state is forked, and each copy answers
 * another follow-up. What both have in common is evaluated once.
 * usage: chat_fork MODEL QUESTION FOLLOW-UP OTHER-FOLLOW-UP */
#include <stdio.h>
#include <string.h>

#include <sluice.h>

enum { CONTEXT = 1024, MAX_CHAT = 8192 };

/* A conversation: its messages as JSON, and the state that has read them. */
typedef struct chat {
    char messages[MAX_CHAT]; /* "[{...}, {...}", not yet closed */
    sl_state *state;
} chat;

/* Adds a message; what does not fit is left out. */
static sl_status add_message(chat *c, const char *role, const char *text, size_t n, sl_error *err)
{
    char *quoted = NULL;
    size_t n_quoted;
    const size_t used = strlen(c->messages);
    sl_status status = sl_json_quote(text, n, &quoted, &n_quoted, err);
    if (status == SL_OK && n_quoted + 64 < sizeof c->messages - used)
        snprintf(c->messages + used, sizeof c->messages - used,
                 "%s{\"role\": \"%s\", \"content\": %s}", used > 0 ? ", " : "[", role, quoted);
    sl_free(quoted);
    return status;
}

/* Gathers the content of an answer. */
typedef struct reply {
    char text[1024];
    size_t n;
} reply;

static bool gather(void *user, const sl_event *event)
{
    reply *r = user;
    if (event->kind == SL_EVENT_OUTPUT && event->output->kind == SL_OUTPARSE_CONTENT) {
        const sl_str piece = event->output->text;
        const size_t room = sizeof r->text - r->n;
        const size_t n = piece.n_bytes < room ? piece.n_bytes : room;
        memcpy(r->text + r->n, piece.data, n);
        r->n += n;
    }
    return r->n == sizeof r->text;
}

/* One turn: the question joins the messages, and so does the answer. */
static sl_status turn(sl_engine *engine, chat *c, const char *question, sl_error *err)
{
    char closed[MAX_CHAT + 2];
    sl_ids prompt = {0};
    sl_chat input = {0};
    reply r = {.n = 0};
    sl_generate_params params = sl_generate_params_default(engine);
    sl_generate_result result;
    params.sampling.temperature = 0;
    sl_status status = add_message(c, "user", question, strlen(question), err);
    if (status == SL_OK) {
        input.messages.data = closed;
        input.messages.n_bytes = (size_t)snprintf(closed, sizeof closed, "%s]", c->messages);
        status = sl_engine_render(engine, &input, &prompt, NULL, err);
    }
    /* The state is brought to the new prompt: what it already has of it is not evaluated again. */
    if (status == SL_OK)
        status = sl_generate(c->state, prompt.ids, prompt.n, &params, gather, &r, &result, err);
    if (status == SL_OK) {
        printf("%s\n    %.*s\n    (%u of %u tokens of the prompt were there)\n", question, (int)r.n,
               r.text, (unsigned)result.reuse.reused, (unsigned)prompt.n);
        status = add_message(c, "assistant", r.text, r.n, err);
    }
    sl_ids_free(&prompt);
    return status;
}

static sl_status talk(sl_engine *engine, chat *first, chat *second, char **questions, sl_error *err)
{
    sl_status status = sl_state_create(engine, CONTEXT, &first->state, err);
    if (status == SL_OK)
        status = turn(engine, first, questions[0], err);
    if (status == SL_OK) {
        memcpy(second->messages, first->messages, sizeof second->messages);
        status = sl_state_fork(first->state, &second->state, err);
    }
    if (status == SL_OK)
        status = turn(engine, first, questions[1], err);
    if (status == SL_OK)
        status = turn(engine, second, questions[2], err);
    return status;
}

int main(int argc, char **argv)
{
    static chat first, second;
    sl_engine *engine = NULL;
    sl_error err;
    if (argc != 5) {
        fprintf(stderr, "usage: chat_fork MODEL QUESTION FOLLOW-UP OTHER-FOLLOW-UP\n");
        return 2;
    }
    sl_status status = sl_engine_open(argv[1], NULL, &engine, &err);
    if (status == SL_OK)
        status = talk(engine, &first, &second, argv + 2, &err);
    if (status != SL_OK)
        fprintf(stderr, "chat_fork: %s\n", err.message);
    sl_state_free(first.state);
    sl_state_free(second.state);
    sl_engine_close(engine);
    return status == SL_OK ? 0 : 1;
}
