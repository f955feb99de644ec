/* A chat as its user meets it: typed on a terminal, read from it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dialogue.h"
#include "opts.h"
#include "process.h"
#include "text_data.h"

#define TINY "models/tiny-q8_0.gguf"
#define RAND "tests/data/models/rand-r1-q8_0.gguf"

/* Prompts must take long enough to be interrupted, also on a fast machine. */
#define SLOWLY "SLUICE_ISA=scalar"

/* A prompt: the terminal marks pastes from here on. */
#define ASK            "\033[?2004h> "
#define ASK_IN(branch) "\033[?2004h" branch "> "
#define MORE           "\033[?2004h... "
#define FRANCE         "What is the capital of France?\r"
#define PARIS          "The capital of France is Paris.\r\n"

/* An answer that does not end by itself before the context is full: random tokens of a fixed seed,
 * without those that end an answer. It begins with "wide number", that of the next seed with
 * "hage". */
#define ENDLESS \
    "run", TINY, "--temp", "50", "--top-k", "0", "--top-p", "1", "--seed", "3", "--logit-bias", \
        "2650=-1e30", "--logit-bias", "2652=-1e30", "--ctx", "32768"

#define LINE_OF_FOXES \
    "fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox " \
    "fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox fox"

static char folder[4096], home[4200], state_home[4200], history_path[4300];

static int make_folder(void **state)
{
    (void)state;
    char relative[4096];
    snprintf(relative, sizeof relative, "%s", sl_build_path("chat-XXXXXX"));
    assert_non_null(mkdtemp(relative));
    assert_non_null(realpath(relative, folder));
    snprintf(home, sizeof home, "HOME=%s", folder);
    snprintf(state_home, sizeof state_home, "XDG_STATE_HOME=%s/state", folder);
    snprintf(history_path, sizeof history_path, "%s/state/sluice/history", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    char path[4300];
    static const char *const files[] = {"state/sluice/history",
                                        "state/sluice",
                                        "state",
                                        "saved",
                                        "alone",
                                        "tools.json",
                                        ".local/state/sluice/history",
                                        ".local/state/sluice",
                                        ".local/state",
                                        ".local"};
    for (size_t i = 0; i < SL_COUNTOF(files); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        remove(path);
    }
    assert_int_equal(rmdir(folder), 0);
    return 0;
}

static sl_dialogue chat_with(const char *variable, const char *const *arguments)
{
    const char *const env[] = {home, state_home, "TERM=xterm", SLOWLY, variable, NULL};
    return sl_dialogue_open(arguments, env);
}

#define chat(variable, ...) chat_with((variable), (const char *const[]){__VA_ARGS__, NULL})
#define greedy_chat(...)    chat(NULL, "run", TINY, "--greedy", __VA_ARGS__)

static void say(sl_dialogue *d, const char *text)
{
    sl_dialogue_say(d, ASK, text);
}

static void finish(sl_dialogue *d)
{
    say(d, "\004");
    sl_dialogue_end(d, 0);
    sl_dialogue_close(d);
}

/* ---- answers and endings ---- */

static void test_answers_and_ends(void **state)
{
    (void)state;
    sl_dialogue d = greedy_chat("--think", "off");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, PARIS);
    say(&d, "   \r"); /* says nothing */
    say(&d, "\004");
    sl_dialogue_end(&d, 0);
    assert_null(strstr(d.out, "\033[2m")); /* no thinking, nothing dim */
    sl_dialogue_close(&d);

    d = greedy_chat("--verbose");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, "answer 8 tokens at ");
    say(&d, "/quit\r");
    sl_dialogue_end(&d, 0);
    sl_dialogue_close(&d);
}

static void test_other_terminals(void **state)
{
    (void)state;
    const sl_process_setup input = {.input = "What is the capital of France?"};
    sl_process p = sl_sluice(&input, "run", TINY, "--greedy");
    sl_process_expect(&p, 0, "The capital of France is Paris.\n", NULL);
    assert_null(strchr(p.out, '\033'));
    assert_string_equal(p.err, "");
    sl_process_free(&p);

    const char *const env[] = {home, state_home, "TERM=dumb", SLOWLY, NULL};
    const char *const arguments[] = {"run", TINY, "--greedy", NULL};
    sl_dialogue d = sl_dialogue_open(arguments, env);
    sl_dialogue_say(&d, "\n> ", FRANCE);
    sl_dialogue_expect(&d, PARIS);
    sl_dialogue_say(&d, "> ", "\004");
    sl_dialogue_end(&d, 0);
    assert_null(strchr(d.out, '\033')); /* such a terminal knows no escapes */
    sl_dialogue_close(&d);
}

static void test_thinking_is_dim(void **state)
{
    (void)state;
    sl_dialogue d = greedy_chat("--think", "on");
    say(&d, "Translate cat to German.\r");
    sl_dialogue_expect(&d, "\033[2mThe German word for cat is Katze.");
    sl_dialogue_expect(&d, "\033[0mCat in German is Katze.\r\n");
    finish(&d);

    d = chat("NO_COLOR=1", "run", TINY, "--greedy", "--think", "on");
    say(&d, "Translate cat to German.\r");
    sl_dialogue_expect(&d, "is Katze.\r\nCat in German is Katze.\r\n");
    say(&d, "\004");
    sl_dialogue_end(&d, 0);
    assert_null(strstr(d.out, "\033[2m"));
    assert_null(strstr(d.out, "\033[0m"));
    sl_dialogue_close(&d);
}

/* ---- Ctrl-C and other signals ---- */

static void test_interrupt_of_an_answer(void **state)
{
    (void)state;
    sl_dialogue d = chat(NULL, ENDLESS);
    say(&d, "Tell me a story.\r");
    sl_dialogue_expect(&d, "\033[?2004l");
    sl_dialogue_expect(&d, "wide number");
    sl_dialogue_type(&d, "\003");
    sl_dialogue_expect(&d, "(stopped; /regen");
    say(&d, "/stats\r");
    sl_dialogue_expect(&d, "(interrupted)");
    /* What there is of it is part of the conversation; another answer can be had. */
    say(&d, "/regen\r");
    sl_dialogue_expect(&d, "\033[?2004l");
    sl_dialogue_expect(&d, "hage");
    sl_dialogue_type(&d, "\003");
    sl_dialogue_expect(&d, "(stopped; /regen");
    say(&d, "\003"); /* the second one, with nothing said since */
    sl_dialogue_end(&d, 0);
    sl_dialogue_close(&d);
}

/* Ctrl-D while the answer comes stops it and ends the chat. */
static void test_end_in_an_answer(void **state)
{
    (void)state;
    sl_dialogue d = chat(NULL, ENDLESS);
    say(&d, "Tell me a story.\r");
    sl_dialogue_expect(&d, "\033[?2004l");
    sl_dialogue_expect(&d, "wide number");
    sl_dialogue_type(&d, "\004");
    sl_dialogue_end(&d, 0);
    assert_null(strstr(d.out + d.n_read, "(stopped"));
    assert_null(strstr(d.out + d.n_read, "> "));
    assert_string_equal(d.out + d.n_out - 5, "\n\033[0m");
    sl_dialogue_close(&d);

    /* After a line that was typed ahead it is that line's: the answer goes on, and the end comes
     * with the next one. */
    d = chat(NULL, ENDLESS, "-n", "60", "--json");
    say(&d, "Tell me a story.\r");
    sl_dialogue_expect(&d, "\033[?2004l");
    sl_dialogue_type(&d, "Another one.\r\004");
    sl_dialogue_expect(&d, "\"finish_reason\":\"length\"");
    sl_dialogue_end(&d, 0);
    sl_dialogue_close(&d);
}

static void test_interrupt_at_the_prompt(void **state)
{
    (void)state;
    sl_dialogue d = greedy_chat("--think", "off");
    say(&d, "half a line");
    sl_dialogue_expect(&d, "half a line");
    sl_dialogue_type(&d, "\003");
    say(&d, "\003");
    sl_dialogue_expect(&d, "(once more, ");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, PARIS);
    say(&d, "\003");
    sl_dialogue_expect(&d, "(once more, ");
    say(&d, "\003");
    sl_dialogue_end(&d, 0);
    sl_dialogue_close(&d);
}

/* While the prompt is read: the message goes, what was read of it stays. */
static void test_interrupt_of_a_prompt(void **state)
{
    (void)state;
    enum { N_WORDS = 1500 };
    char *text = calloc(N_WORDS, 8);
    assert_non_null(text);
    for (size_t i = 0; i < N_WORDS; i++)
        memcpy(text + 4 * i, "fox ", 4);
    sl_dialogue d = greedy_chat("--think", "off");
    for (int attempt = 0; attempt < 2; attempt++) {
        sl_dialogue_expect(&d, ASK);
        sl_dialogue_type(&d, "\033[200~");
        for (size_t i = 0; i < strlen(text); i += 400) {
            char piece[401];
            snprintf(piece, sizeof piece, "%s", text + i);
            sl_dialogue_type(&d, piece);
        }
        sl_dialogue_type(&d, "\033[201~\r");
        sl_dialogue_expect(&d, "reading the prompt: ");
        sl_dialogue_expect(&d, " tokens/s, ");
        sl_dialogue_expect(&d, " s left");
        sl_dialogue_type(&d, "\003");
        sl_dialogue_expect(&d, "the message is taken back");
        say(&d, "/stats\r");
        sl_dialogue_expect(&d, attempt == 0 ? " tokens: 0 reused, " : " tokens: ");
        assert_true(attempt == 0 || d.out[d.n_read] != '0');
        sl_dialogue_expect(&d, "answer       0 tokens");
        sl_dialogue_expect(&d, "(interrupted)");
    }
    free(text);
    say(&d, "/undo\r");
    sl_dialogue_expect(&d, "there is no turn to take back");
    finish(&d);
}

static void test_ended_by_signals(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGHUP, SIGSEGV};
    for (size_t i = 0; i < SL_COUNTOF(signals); i++) {
        sl_dialogue d = greedy_chat("--think", "off");
        say(&d, "half");
        sl_dialogue_expect(&d, "half");
        sl_dialogue_signal(&d, signals[i]);
        sl_dialogue_end(&d, 128 + signals[i]);
        sl_dialogue_close(&d);
    }
    sl_dialogue d = chat(NULL, ENDLESS);
    say(&d, "Tell me a story.\r");
    sl_dialogue_expect(&d, "\033[?2004l");
    sl_dialogue_expect(&d, "wide number");
    sl_dialogue_signal(&d, SIGTERM);
    sl_dialogue_end(&d, 128 + SIGTERM);
    sl_dialogue_close(&d);
}

/* One answer without a chat: dim text ends with the program. */
static void test_dim_ends_with_the_program(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGHUP};
    for (size_t i = 0; i < SL_COUNTOF(signals); i++) {
        sl_dialogue d = chat(NULL, ENDLESS, "--think", "on", "Tell me a story.");
        sl_dialogue_expect(&d, "\033[2m");
        sl_dialogue_signal(&d, signals[i]);
        sl_dialogue_end(&d, 128 + signals[i]);
        assert_string_equal(d.out + d.n_out - 4, "\033[0m");
        sl_dialogue_close(&d);
    }
}

/* A line of progress that would not fit is cut: it could not be replaced otherwise. */
static void test_narrow_terminal(void **state)
{
    (void)state;
    sl_dialogue d = greedy_chat("--think", "off");
    sl_dialogue_expect(&d, ASK);
    sl_dialogue_resize(&d, 30);
    sl_dialogue_type(&d, "\"\"\"\r");
    for (int i = 0; i < 40; i++)
        sl_dialogue_say(&d, MORE, LINE_OF_FOXES "\r");
    sl_dialogue_say(&d, MORE, "\"\"\"\r");
    const size_t start = d.n_read;
    sl_dialogue_expect(&d, "reading the prompt: ");
    sl_dialogue_type(&d, "\003");
    sl_dialogue_expect(&d, "the message is taken back");
    size_t n_lines = 0;
    for (const char *line = strstr(d.out + start, "\rreading"); line;
         line = strstr(line + 1, "\rreading"), n_lines++)
        assert_true(strcspn(line + 1, "\r^") < 30); /* the terminal adds ^C */
    assert_true(n_lines > 0);
    finish(&d);
}

/* Stopped and continued, and resized: the line goes on. */
static void test_stopped_and_continued(void **state)
{
    (void)state;
    sl_dialogue d = greedy_chat("--think", "off");
    say(&d, "What is 6 ");
    sl_dialogue_expect(&d, "What is 6 ");
    sl_dialogue_type(&d, "\032"); /* Ctrl-Z */
    sl_dialogue_stopped(&d);
    sl_dialogue_signal(&d, SIGCONT);
    sl_dialogue_expect(&d, "> What is 6 ");
    sl_dialogue_signal(&d, SIGWINCH);
    sl_dialogue_type(&d, "times 7?\r");
    sl_dialogue_expect(&d, "6 * 7 = 42.\r\n");
    finish(&d);
}

/* ---- typing ---- */

static char *read_history(void)
{
    size_t n;
    return sl_test_read_file(history_path, &n);
}

static void test_editing_and_history(void **state)
{
    (void)state;
    remove(history_path);
    sl_dialogue d = greedy_chat("--think", "off");
    /* A letter too many, one too few, and one of two and three bytes taken back. */
    say(&d, "What is 6 tames 7\xC3\xA4\xE2\x82\xAC\177\177?");
    sl_dialogue_type(&d, "\033[D\033[D\033[D\033[D\033[D\033[D\177i\005\r");
    sl_dialogue_expect(&d, "6 * 7 = 42.\r\n");
    say(&d, "/stats\r");
    say(&d, "\033[A\033[A\r"); /* the first line again */
    sl_dialogue_expect(&d, "6 * 7 = 42.\r\n");
    finish(&d);
    char *lines = read_history();
    assert_string_equal(lines, "What is 6 times 7?\n/stats\nWhat is 6 times 7?\n");
    free(lines);
    struct stat info;
    assert_int_equal(stat(history_path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);

    /* Another chat remembers, and searches. */
    d = greedy_chat("--think", "off");
    say(&d, "\022times\r"); /* ends the search and the line */
    sl_dialogue_expect(&d, "6 * 7 = 42.\r\n");
    finish(&d);
}

static void test_history_is_bounded(void **state)
{
    (void)state;
    FILE *file = fopen(history_path, "w");
    assert_non_null(file);
    for (int i = 0; i < 1500; i++)
        fprintf(file, "line %d\\nwith \\\\ two\n", i);
    assert_int_equal(fclose(file), 0);
    sl_dialogue d = greedy_chat("--think", "off");
    say(&d, "\033[A");
    sl_dialogue_expect(&d, "with \\ two");
    sl_dialogue_type(&d, "\025\003"); /* drops it */
    finish(&d);
    char *lines = read_history();
    assert_memory_equal(lines, "line 500\\nwith \\\\ two\n", 22);
    free(lines);

    /* Where it cannot be kept nothing is said about it. */
    remove(history_path);
    assert_int_equal(mkdir(history_path, 0700), 0);
    d = greedy_chat("--think", "off");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, PARIS);
    say(&d, "\004");
    sl_dialogue_end(&d, 0);
    assert_null(strstr(d.out, "sluice: "));
    sl_dialogue_close(&d);
    assert_int_equal(rmdir(history_path), 0);

    /* By default it lies under the home folder. */
    const char *const env[] = {home, "TERM=xterm", SLOWLY, NULL};
    const char *const arguments[] = {"run", TINY, NULL};
    d = sl_dialogue_open(arguments, env);
    say(&d, "/stats\r");
    finish(&d);
    char path[4300];
    snprintf(path, sizeof path, "%s/.local/state/sluice/history", folder);
    size_t n;
    lines = sl_test_read_file(path, &n);
    assert_string_equal(lines, "/stats\n");
    free(lines);
}

static void test_several_lines(void **state)
{
    (void)state;
    remove(history_path);
    sl_dialogue d = greedy_chat("--think", "off");
    say(&d, "What is the\\\r");
    sl_dialogue_say(&d, MORE, "capital of France?\r");
    sl_dialogue_expect(&d, PARIS);
    say(&d, "\"\"\"\r");
    sl_dialogue_say(&d, MORE, "/help\r"); /* no command in here */
    sl_dialogue_say(&d, MORE, "\r");
    sl_dialogue_say(&d, MORE, "\"\"\"\r");
    say(&d, "\033[200~/a\rb\tc\033\r\033[201~"); /* pasted: line ends do not send it */
    sl_dialogue_expect(&d, "/a\r\nb");
    sl_dialogue_type(&d, "d\r");
    sl_dialogue_expect(&d, "there is no command /a");
    say(&d, "\033[200~/b\r\n\nc\n\r\n\033[201~"); /* also those of other systems */
    sl_dialogue_expect(&d, "/b");
    sl_dialogue_type(&d, "\r");
    sl_dialogue_expect(&d, "there is no command /b");
    say(&d, "\"\"\"\r");
    sl_dialogue_say(&d, MORE, "dropped\r");
    sl_dialogue_say(&d, MORE, "\003");
    say(&d, "/undo\r");
    sl_dialogue_expect(&d, "(taken back; 1 turn left)");
    say(&d, "\004");
    sl_dialogue_end(&d, 0);
    assert_null(strstr(d.out, "this page"));
    sl_dialogue_close(&d);
    char *lines = read_history();
    assert_string_equal(lines, "What is the\\ncapital of France?\n/help\\n\n/a\\nb\tcd\n"
                               "/b\\n\\nc\n/undo\n");
    free(lines);
}

/* ---- commands ---- */

static void test_help_and_mistakes(void **state)
{
    (void)state;
    static const char *const names[] = {"/help",  "/system", "/think", "/tools", "/set",
                                        "/save",  "/load",   "/fork",  "/undo",  "/regen",
                                        "/stats", "/clear",  "/quit"};
    static const struct {
        const char *line, *part;
    } mistakes[] = {
        {"/halp\r", "did you mean /help?"},
        {"/xyzzy\r", "there is no command /xyzzy; /help shows them"},
        {"/save\r", "/save FILE"},
        {"/undo 2\r", "/undo takes nothing after it"},
        {"/undo\r", "there is no turn to take back"},
        {"/regen\r", "there is no answer yet"},
        {"/think maybe\r", "'maybe' is neither on nor off"},
        {"/set tmep 1\r", "did you mean 'temp'?"},
        {"/set temp warm\r", "temp: 'warm' is not a number from 0 to 100"},
        {"/set temp\r", "/set NAME VALUE"},
        {"/set threads 2\r", "there is no setting 'threads'"},
        {"/set logit-bias 1:2\r", "'1:2' is not a token id"},
        {"/set think-grace 3\r", "belongs to --think-budget"},
        {"/tools no/such/file\r", "no/such/file: No such file"},
        {"/load no/such/file\r", "no/such/file"},
        {"/load " TINY "\r", TINY},
        {"/save no/such/folder/x\r", "no/such/folder/x"},
        {"/fork a/b\r", "the name of a branch is"},
        {"/fork drop x\r", "there is no branch 'x'"},
        {"/fork drop main\r", "'main' is the current branch"},
    };
    sl_dialogue d = greedy_chat("--think", "off");
    say(&d, "/help\r");
    for (size_t i = 0; i < SL_COUNTOF(names); i++)
        sl_dialogue_expect(&d, names[i]);
    for (size_t i = 0; i < SL_COUNTOF(mistakes); i++) {
        say(&d, mistakes[i].line);
        sl_dialogue_expect(&d, mistakes[i].part);
    }
    say(&d, FRANCE); /* and all is as it was */
    sl_dialogue_expect(&d, PARIS);
    finish(&d);
}

static void test_settings(void **state)
{
    (void)state;
    sl_dialogue d = greedy_chat("--think", "off");
    say(&d, "/set\r");
    sl_dialogue_expect(&d, "greedy               on\r\n");
    say(&d, "/set stop is\r");
    say(&d, "/set\r");
    sl_dialogue_expect(&d, "stop                 \"is\"\r\n");
    sl_dialogue_expect(&d, "top-k                20 (default)\r\n");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, "The capital of France \r\n");
    say(&d, "/set stop default\r");
    say(&d, "/set max-tokens 3\r");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, "(cut off by max-tokens");
    say(&d, "/set max-tokens default\r");
    say(&d, "/set temp 0.5\r");
    say(&d, "/set seed 7\r");
    say(&d, "/set\r");
    sl_dialogue_expect(&d, "temp                 0.5\r\n");
    sl_dialogue_expect(&d, "greedy               not set\r\n");
    say(&d, "/set greedy on\r");
    say(&d, "/clear\r");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, PARIS);
    say(&d, "/system\r");
    sl_dialogue_expect(&d, "off\r\n");
    say(&d, "/system Answer in a word.\r");
    say(&d, "/system\r");
    sl_dialogue_expect(&d, "\033[?2004lAnswer in a word.\r\n");
    say(&d, "/system off\r");
    say(&d, "/think\r");
    sl_dialogue_expect(&d, "\033[?2004loff\r\n");
    say(&d, "/think on\r");
    say(&d, "Translate cat to German.\r");
    sl_dialogue_expect(&d, "The German word for cat is Katze.");
    finish(&d);
}

#define DRAWN_CHAT(seed) \
    chat(NULL, "run", TINY, "--temp", "3", "--top-k", "0", "--think", "off", "-n", "8", "--seed", \
         (seed))

/* What is shown between the line that was typed and the next prompt. */
static void read_answer(sl_dialogue *d, char text[512])
{
    sl_dialogue_expect(d, "\r\n\033[?2004l");
    size_t start = d->n_read;
    sl_dialogue_expect(d, "\033[?2004h");
    d->n_read -= strlen("\033[?2004h");
    /* A line of progress ends with a return and no line end. */
    for (size_t i = start; i + 1 < d->n_read; i++) {
        if (d->out[i] == '\r' && d->out[i + 1] != '\n')
            start = i + 1;
    }
    snprintf(text, 512, "%.*s", (int)(d->n_read - start), d->out + start);
}

static void test_fork_undo_regen(void **state)
{
    (void)state;
    sl_dialogue d = greedy_chat("--think", "off");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, PARIS);
    say(&d, "/fork sums\r");
    sl_dialogue_expect(&d, "(branch sums, from main; /fork main goes back)");
    sl_dialogue_say(&d, ASK_IN("sums"), "/undo\r");
    sl_dialogue_expect(&d, "(taken back; 0 turns left)");
    sl_dialogue_say(&d, ASK_IN("sums"), "What is 9 - 5?\r");
    sl_dialogue_expect(&d, "9 - 5 = 4.\r\n");
    sl_dialogue_say(&d, ASK_IN("sums"), "/regen\r");
    sl_dialogue_expect(&d, "(temperature 0: the same prompt has the same answer)");
    sl_dialogue_expect(&d, "9 - 5 = 4.\r\n");
    sl_dialogue_say(&d, ASK_IN("sums"), "/fork list\r");
    sl_dialogue_expect(&d, "  main: 1 turn, 26 tokens\r\n* sums: 1 turn, ");
    sl_dialogue_say(&d, ASK_IN("sums"), "/fork\r");
    sl_dialogue_say(&d, ASK_IN("1"), "/fork main\r");
    say(&d, "/fork drop sums\r");
    say(&d, "/fork list\r");
    sl_dialogue_expect(&d, "* main: 1 turn, 26 tokens\r\n  1: 1 turn, ");
    say(&d, "/regen\r");
    sl_dialogue_expect(&d, PARIS);
    finish(&d);

    /* Drawn answers: /regen takes the next seed. */
    char again[512], next[512];
    d = DRAWN_CHAT("5");
    say(&d, "Tell me a story.\r");
    read_answer(&d, again);
    say(&d, "/regen\r");
    read_answer(&d, next);
    finish(&d);
    assert_string_not_equal(again, next);
    d = DRAWN_CHAT("6");
    say(&d, "Tell me a story.\r");
    read_answer(&d, again);
    finish(&d);
    assert_string_equal(again, next);
}

static void test_save_and_load(void **state)
{
    (void)state;
    char save[4300], load[4300];
    snprintf(save, sizeof save, "/save %s/saved\r", folder);
    snprintf(load, sizeof load, "/load %s/saved\r", folder);
    sl_dialogue d = greedy_chat("--think", "on", "--system", "Be kind.");
    say(&d, "Translate cat to German.\r");
    sl_dialogue_expect(&d, "Cat in German is Katze.");
    say(&d, "/set top-k 7\r");
    say(&d, save);
    sl_dialogue_expect(&d, "(saved to ");
    finish(&d);

    /* Another process, other settings: the file's conversation and settings take their place. */
    d = chat(NULL, "run", TINY);
    say(&d, load);
    sl_dialogue_expect(&d, "(1 turn, ");
    say(&d, "/set\r");
    sl_dialogue_expect(&d, "top-k                7\r\n");
    sl_dialogue_expect(&d, "greedy               on\r\n");
    say(&d, "/system\r");
    sl_dialogue_expect(&d, "Be kind.");
    say(&d, "/think\r");
    sl_dialogue_expect(&d, "\033[?2004lon\r\n");
    say(&d, "/regen\r");
    sl_dialogue_expect(&d, "Cat in German is Katze.");
    finish(&d);

    /* Nothing said yet is a conversation, too. */
    d = greedy_chat("--think", "off");
    say(&d, save);
    sl_dialogue_expect(&d, "(saved to ");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, PARIS);
    say(&d, load);
    sl_dialogue_expect(&d, "(0 turns, 0 tokens)");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, PARIS);
    say(&d, save);
    finish(&d);

    /* The state of another model is refused, and nothing changes. */
    d = chat(NULL, "run", RAND, "--greedy", "-n", "2");
    say(&d, load);
    sl_dialogue_expect(&d, "another model");
    finish(&d);

    /* A file that is too long for the context. */
    d = chat(NULL, "run", TINY, "-c", "16");
    say(&d, load);
    sl_dialogue_expect(&d, "16");
    finish(&d);
}

static void test_tools(void **state)
{
    (void)state;
    char path[4300], command[4400];
    snprintf(path, sizeof path, "%s/tools.json", folder);
    snprintf(command, sizeof command, "/tools %s\r", path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": "
          "\"Get the weather in a city.\", \"parameters\": {\"type\": \"object\", \"properties\": "
          "{\"city\": {\"type\": \"string\"}}, \"required\": [\"city\"]}}},"
          "{\"type\": \"function\", \"function\": {\"name\": \"search\", \"description\": "
          "\"Search the web.\", \"parameters\": {\"type\": \"object\", \"properties\": {\"query\": "
          "{\"type\": \"string\"}}, \"required\": [\"query\"]}}}]",
          file);
    assert_int_equal(fclose(file), 0);
    sl_dialogue d = greedy_chat("--think", "off");
    say(&d, command);
    sl_dialogue_expect(&d, "get_weather\r\nsearch\r\n");
    say(&d, "What is the weather in Paris?\r");
    sl_dialogue_expect(&d, "-> get_weather {\"city\":\"Paris\"}\r\n");
    sl_dialogue_say(&d, "\033[?2004hget_weather = ", "/stats\r"); /* commands work here, too */
    sl_dialogue_say(&d, "\033[?2004hget_weather = ", "{\"sky\": \"clear\"}\r");
    say(&d, "/undo\r");
    sl_dialogue_expect(&d, "(taken back; 0 turns left)");
    say(&d, "/tools off\r");
    say(&d, "/tools\r");
    sl_dialogue_expect(&d, "off\r\n");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, PARIS);
    finish(&d);
}

static void test_json(void **state)
{
    (void)state;
    sl_dialogue d = greedy_chat("--think", "off", "--format", "json");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, "{\"text\":\"The capital of France is Paris.\",\"thinking\":null,"
                           "\"tool_calls\":[],\"finish_reason\":\"stop\",\"prompt_tokens\":19,"
                           "\"reused_tokens\":0,\"completion_tokens\":8,");
    say(&d, "What is 6 times 7?\r");
    sl_dialogue_expect(&d, "{\"text\":\"6 * 7 = 42.\"");
    sl_dialogue_expect(&d, "\"reused_tokens\":15,");
    finish(&d);
}

static void test_full_context(void **state)
{
    (void)state;
    sl_dialogue d = greedy_chat("--think", "off", "-c", "30");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, PARIS);
    say(&d, "What is 6 times 7?\r");
    sl_dialogue_expect(&d, "the conversation has 44 tokens, the context holds 30");
    sl_dialogue_expect(&d, "Nothing is lost: /undo ");
    say(&d, "/undo\r");
    sl_dialogue_expect(&d, "(taken back; 0 turns left)");
    say(&d, "What is 6 times 7?\r");
    sl_dialogue_expect(&d, "6 * 7 = 42.\r\n");
    say(&d, "/stats\r");
    sl_dialogue_expect(&d, " of 30 tokens, ");
    finish(&d);

    d = greedy_chat("--think", "off", "-c", "21");
    say(&d, FRANCE);
    sl_dialogue_expect(&d, "(the context of 21 tokens is full: /undo ");
    finish(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_and_ends),
        cmocka_unit_test(test_other_terminals),
        cmocka_unit_test(test_thinking_is_dim),
        cmocka_unit_test(test_interrupt_of_an_answer),
        cmocka_unit_test(test_end_in_an_answer),
        cmocka_unit_test(test_interrupt_at_the_prompt),
        cmocka_unit_test(test_interrupt_of_a_prompt),
        cmocka_unit_test(test_ended_by_signals),
        cmocka_unit_test(test_dim_ends_with_the_program),
        cmocka_unit_test(test_narrow_terminal),
        cmocka_unit_test(test_stopped_and_continued),
        cmocka_unit_test(test_editing_and_history),
        cmocka_unit_test(test_history_is_bounded),
        cmocka_unit_test(test_several_lines),
        cmocka_unit_test(test_help_and_mistakes),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_fork_undo_regen),
        cmocka_unit_test(test_save_and_load),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_full_context),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
