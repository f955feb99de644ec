/* Owns the counting of thinking tokens and the decision when thinking must end. */
#include "engine/think_budget.h"

#include <string.h>

sl_status sl_think_rules_check(const sl_think_rules *rules, sl_error *err)
{
    if (rules->n_end == 0 || rules->n_end > SL_THINK_MAX_END || rules->n_line >= rules->n_end)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "the end of thinking has %zu tokens of which %zu break the line, it must "
                       "have 1 to %d",
                       rules->n_end, rules->n_line, SL_THINK_MAX_END);
    size_t n_close = 0;
    for (size_t i = 0; i < rules->n_end; i++) {
        if (rules->end[i] == rules->open_id)
            return sl_fail(err, SL_ERR_ARGUMENT, "the end of thinking begins another");
        if (rules->end[i] == rules->close_id)
            n_close += i >= rules->n_line ? 1 : 2;
    }
    if (n_close != 1)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "the end of thinking must have its closing tag once, after the line break");
    return SL_OK;
}

sl_status sl_think_rules_create(const sl_tokenizer *tokenizer, uint32_t budget, uint32_t grace,
                                sl_think_rules *out, sl_error *err)
{
    static const char end[] = "\n</think>\n\n";
    *out = (sl_think_rules){
        .budget = budget,
        .grace = grace,
        .open_id = sl_tokenizer_find(tokenizer, "<think>"),
        .close_id = sl_tokenizer_find(tokenizer, "</think>"),
    };
    if (out->open_id < 0 || out->close_id < 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "the model's vocabulary has no <think> and </think>");
    const sl_encode_options how = {.control = true, .user_defined = true};
    sl_ids ids = {0};
    sl_status status = sl_tokenizer_encode(tokenizer, end, sizeof end - 1, &how, &ids, NULL, err);
    if (status == SL_OK) {
        const size_t n = sl_min_size(ids.n, SL_THINK_MAX_END);
        out->n_end = ids.n;
        memcpy(out->end, ids.ids, n * sizeof *out->end);
        while (out->n_line < n && out->end[out->n_line] != out->close_id)
            out->n_line++;
        status = sl_think_rules_check(out, err);
    }
    sl_ids_free(&ids);
    return status;
}

/* Begins to force once the budget is used up and a line has ended, or the grace is used up too. */
static void decide(sl_think_budget *budget, const sl_think_rules *rules)
{
    if (!budget->thinking || budget->n_thinking < rules->budget)
        return;
    if (!budget->line_ended && budget->n_grace < rules->grace)
        return;
    budget->next_end = 1 + (budget->line_ended ? (uint32_t)rules->n_line : 0);
}

static bool ends_line(sl_str bytes)
{
    return bytes.n_bytes > 0 && bytes.data[bytes.n_bytes - 1] == '\n';
}

sl_think_budget sl_think_budget_begin(const sl_think_rules *rules, bool thinking, sl_str prompt_end)
{
    sl_think_budget budget = {.thinking = thinking, .line_ended = ends_line(prompt_end)};
    decide(&budget, rules);
    return budget;
}

int32_t sl_think_budget_forced(const sl_think_budget *budget, const sl_think_rules *rules)
{
    return budget->next_end > 0 ? rules->end[budget->next_end - 1] : -1;
}

void sl_think_budget_push(sl_think_budget *budget, const sl_think_rules *rules, int32_t token,
                          sl_str bytes)
{
    const bool was_forced = budget->next_end > 0 && token == sl_think_budget_forced(budget, rules);
    if (token == rules->open_id) {
        budget->thinking = true;
    } else if (token == rules->close_id) {
        budget->thinking = false;
    } else if (budget->thinking) {
        budget->n_grace += budget->n_thinking >= rules->budget;
        budget->n_thinking++;
    }
    budget->line_ended = ends_line(bytes);
    if (was_forced) {
        budget->n_forced++;
        budget->next_end = budget->next_end < rules->n_end ? budget->next_end + 1 : 0;
    } else {
        budget->next_end = 0;
    }
    if (budget->next_end == 0)
        decide(budget, rules);
}
