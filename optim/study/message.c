/* Lines between a study and its Python process: JSON arrays of strings, one a line. Numbers are words too, so that both
 * sides choose how to read them. */
#include "optim/json_impl.h"
#include "optim/study/study_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

wf_status wf_study_check_text(const char *what, const char *text)
{
    WF_CHECK(wf_json_is_utf8(text), WF_ERR_ARGUMENT, "%s \"%.200s\" is no UTF-8", what, text);
    return WF_OK;
}

/* A line that fails is only noted: wf_line_end tells it, once. */
void wf_line_begin(wf_line *line, const char *request)
{
    *line = (wf_line){0};
    /* It keeps the places of the text and its size. */
    line->file = open_memstream(&line->text, &line->size);
    if (line->file) {
        fputc('[', line->file);
        wf_json_text(line->file, request);
    }
}

void wf_line_add(wf_line *line, const char *word)
{
    if (!line->file)
        return;
    fputc(',', line->file);
    wf_json_text(line->file, word);
}

void wf_line_add_int(wf_line *line, int64_t value)
{
    char word[32];
    snprintf(word, sizeof word, "%lld", (long long)value);
    wf_line_add(line, word);
}

void wf_line_add_real(wf_line *line, double value)
{
    char word[40];
    /* Hexadecimal, which Python's float.fromhex reads without rounding. */
    snprintf(word, sizeof word, "%a", value);
    wf_line_add(line, word);
}

char *wf_line_end(wf_line *line)
{
    if (line->file) {
        fputc(']', line->file);
        /* line->text is set by fclose. */
        if (fclose(line->file) == 0)
            return line->text;
        free(line->text);
    }
    WF_RAISE(WF_ERR_MEMORY, "no memory for a line to Python");
    return NULL;
}

/* --- Answers -------------------------------------------------------------------------------------------------------
 */

/* At most as many strings as quotes. */
static int64_t most_words(const char *line)
{
    int64_t quotes = 0;
    for (; *line; line++)
        quotes += *line == '"';
    return quotes / 2 + 1;
}

/* Words are unescaped into one text, which is never longer than the line. */
static bool split_line(wf_words *words, const char *from)
{
    char *to = words->text;
    if (*from++ != '[')
        return false;
    for (;;) {
        words->word[words->count++] = to;
        from += strspn(from, " ");
        if (!(from = wf_json_string(from, &to)))
            return false;
        from += strspn(from, " ");
        if (*from == ']')
            return true;
        if (*from++ != ',')
            return false;
    }
}

/* The line may be anything that a broken Python prints: nothing is read before it was checked. */
wf_status wf_words_parse(wf_words *words, const char *line)
{
    *words = (wf_words){0};
    words->text = malloc(strlen(line) + 1);
    words->word = malloc((size_t)most_words(line) * sizeof *words->word);
    if (!words->text || !words->word) {
        wf_words_free(words);
        WF_FAIL(WF_ERR_MEMORY, "no memory for an answer of Python");
    }
    if (split_line(words, line))
        return WF_OK;
    wf_words_free(words);
    WF_FAIL(WF_ERR_FORMAT, "Python answered \"%.100s\", which is no line of the study", line);
}

void wf_words_free(wf_words *words)
{
    free(words->text);
    free((void *)words->word);
    *words = (wf_words){0};
}

wf_status wf_words_int(const wf_words *words, int64_t i, int64_t *value)
{
    char *end = NULL;
    /* errno tells a number that is too large from one that fits. */
    errno = 0;
    if (i < words->count)
        *value = strtoll(words->word[i], &end, 10);
    WF_CHECK(end && end != words->word[i] && !*end && !errno, WF_ERR_FORMAT,
             "word %lld of Python's answer, \"%.60s\", is no whole number", (long long)i,
             i < words->count ? words->word[i] : "");
    return WF_OK;
}

wf_status wf_words_real(const wf_words *words, int64_t i, double *value)
{
    char *end = NULL;
    if (i < words->count)
        *value = strtod(words->word[i], &end);
    WF_CHECK(end && end != words->word[i] && !*end, WF_ERR_FORMAT,
             "word %lld of Python's answer, \"%.60s\", is no number", (long long)i,
             i < words->count ? words->word[i] : "");
    return WF_OK;
}
