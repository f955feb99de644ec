/* Asks a model one question and prints the answer while it is written.
 * usage: oneshot MODEL QUESTION */
#include <stdio.h>
#include <string.h>

#include <sluice.h>

static bool print_answer(void *user, const sl_event *event)
{
    (void)user;
    if (event->kind == SL_EVENT_OUTPUT && event->output->kind == SL_OUTPARSE_CONTENT)
        fwrite(event->output->text.data, 1, event->output->text.n_bytes, stdout);
    return false; /* true would end the answer here */
}

static sl_status ask(const char *path, const char *question, sl_error *err)
{
    sl_engine *engine = NULL;
    sl_state *state = NULL;
    sl_ids prompt = {0};
    char *quoted = NULL, messages[4096];
    size_t n;
    sl_status status = sl_engine_open(path, NULL, &engine, err);
    if (status == SL_OK)
        status = sl_json_quote(question, strlen(question), &quoted, &n, err);
    if (status == SL_OK) {
        sl_chat chat = {0};
        chat.messages.data = messages;
        chat.messages.n_bytes = (size_t)snprintf(
            messages, sizeof messages, "[{\"role\": \"user\", \"content\": %.4000s}]", quoted);
        status = sl_engine_render(engine, &chat, &prompt, NULL, err);
    }
    if (status == SL_OK)
        status = sl_state_create(engine, (uint32_t)prompt.n + 256, &state, err);
    if (status == SL_OK) {
        sl_generate_params params = sl_generate_params_default(engine);
        sl_generate_result result;
        status =
            sl_generate(state, prompt.ids, prompt.n, &params, print_answer, NULL, &result, err);
        printf("\n");
    }
    sl_state_free(state);
    sl_ids_free(&prompt);
    sl_free(quoted);
    sl_engine_close(engine);
    return status;
}

int main(int argc, char **argv)
{
    sl_error err;
    if (argc != 3) {
        fprintf(stderr, "usage: oneshot MODEL QUESTION\n");
        return 2;
    }
    if (ask(argv[1], argv[2], &err) == SL_OK)
        return 0;
    fprintf(stderr, "oneshot: %s\n", err.message);
    return 1;
}
