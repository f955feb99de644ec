/* Answers several questions at once: every step evaluates one token of each sequence together. A
 * new question joins every third step, and whoever is done leaves. Each answer has the same bits as
 * alone.
 * usage: batch MODEL QUESTION... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sluice.h>

enum { MAX_SEQUENCES = 16, MAX_ANSWER = 128, JOIN_EVERY = 3 };

typedef struct sequence {
    sl_state *state;
    sl_sampler *sampler;
    sl_ids prompt;
    int32_t answer[MAX_ANSWER];
    size_t n_answer;
    bool done;
} sequence;

static sl_status render(sl_engine *engine, const char *question, sl_ids *prompt, sl_error *err)
{
    char *quoted, messages[4096];
    size_t n;
    sl_chat chat = {0};
    sl_status status = sl_json_quote(question, strlen(question), &quoted, &n, err);
    if (status != SL_OK)
        return status;
    chat.messages.data = messages;
    chat.messages.n_bytes = (size_t)snprintf(
        messages, sizeof messages, "[{\"role\": \"user\", \"content\": %.4000s}]", quoted);
    sl_free(quoted);
    return sl_engine_render(engine, &chat, prompt, NULL, err);
}

static sl_status begin(sl_engine *engine, sequence *s, const char *question, sl_error *err)
{
    sl_sampling sampling = sl_engine_sampling(engine);
    sampling.temperature = 0;
    sl_status status = render(engine, question, &s->prompt, err);
    if (status == SL_OK)
        status = sl_engine_sampler(engine, &sampling, &s->sampler, err);
    if (status == SL_OK)
        status = sl_state_create(engine, (uint32_t)s->prompt.n + MAX_ANSWER, &s->state, err);
    return status;
}

static void end(sequence *s)
{
    sl_state_free(s->state);
    sl_sampler_destroy(s->sampler);
    sl_ids_free(&s->prompt);
}

/* What the sequence has to evaluate next: its prompt, or the token chosen last. */
static sl_eval_item next_item(sequence *s)
{
    sl_eval_item item = {0};
    item.state = s->state;
    item.tokens = s->n_answer > 0 ? &s->answer[s->n_answer - 1] : s->prompt.ids;
    item.n_tokens = s->n_answer > 0 ? 1 : s->prompt.n;
    item.keep_logits = true;
    return item;
}

static sl_status choose(sl_engine *engine, sequence *s, sl_error *err)
{
    sl_sample_context context = {0};
    context.history.tokens = sl_state_tokens(s->state);
    context.history.n_tokens = sl_state_length(s->state);
    context.history.n_prompt = s->prompt.n;
    context.position = sl_state_length(s->state);
    int32_t token;
    sl_status status = sl_state_sample(s->state, s->sampler, &context, &token, err);
    if (status != SL_OK)
        return status;
    s->done = sl_engine_is_stop(engine, token);
    if (!s->done)
        s->answer[s->n_answer++] = token;
    s->done = s->done || s->n_answer == MAX_ANSWER;
    return SL_OK;
}

/* One step of all sequences that have begun and are not done; *n_live counts them. */
static sl_status step(sl_engine *engine, sequence *all, size_t n, size_t *n_live, sl_error *err)
{
    sl_eval_item items[MAX_SEQUENCES];
    sequence *live[MAX_SEQUENCES];
    *n_live = 0;
    for (size_t i = 0; i < n; i++) {
        if (all[i].done)
            continue;
        live[*n_live] = &all[i];
        items[(*n_live)++] = next_item(&all[i]);
    }
    sl_status status = sl_engine_eval(engine, items, *n_live, NULL, err);
    for (size_t i = 0; i < *n_live && status == SL_OK; i++)
        status = choose(engine, live[i], err);
    return status;
}

static sl_status print_answer(sl_engine *engine, const char *question, const sequence *s,
                              sl_error *err)
{
    const sl_tokenizer *tokenizer;
    sl_status status = sl_engine_tokenizer(engine, &tokenizer, err);
    if (status != SL_OK)
        return status;
    printf("%s\n    ", question);
    for (size_t i = 0; i < s->n_answer; i++) {
        const sl_str bytes = sl_tokenizer_bytes(tokenizer, s->answer[i]);
        fwrite(bytes.data, 1, bytes.n_bytes, stdout);
    }
    printf("\n");
    return SL_OK;
}

static sl_status answer_all(sl_engine *engine, char **questions, size_t n, sequence *all,
                            sl_error *err)
{
    size_t n_begun = 0, n_live = 0, n_steps = 0, n_rows = 0;
    do {
        if (n_begun < n && n_steps % JOIN_EVERY == 0) {
            sl_status status = begin(engine, &all[n_begun], questions[n_begun], err);
            n_begun++;
            if (status != SL_OK)
                return status;
        }
        sl_status status = step(engine, all, n_begun, &n_live, err);
        if (status != SL_OK)
            return status;
        n_steps++;
        n_rows += n_live;
    } while (n_begun < n || n_live > 0);
    for (size_t i = 0; i < n; i++) {
        sl_status status = print_answer(engine, questions[i], &all[i], err);
        if (status != SL_OK)
            return status;
    }
    printf("%u steps, %.1f sequences in each\n", (unsigned)n_steps,
           (double)n_rows / (double)n_steps);
    return SL_OK;
}

int main(int argc, char **argv)
{
    static sequence all[MAX_SEQUENCES];
    sl_engine *engine = NULL;
    sl_error err;
    if (argc < 3 || argc > 2 + MAX_SEQUENCES) {
        fprintf(stderr, "usage: batch MODEL QUESTION... (up to %d)\n", MAX_SEQUENCES);
        return 2;
    }
    sl_status status = sl_engine_open(argv[1], NULL, &engine, &err);
    if (status == SL_OK)
        status = answer_all(engine, argv + 2, (size_t)argc - 2, all, &err);
    if (status != SL_OK)
        fprintf(stderr, "batch: %s\n", err.message);
    for (size_t i = 0; i < MAX_SEQUENCES; i++)
        end(&all[i]);
    sl_engine_close(engine);
    return status == SL_OK ? 0 : 1;
}
