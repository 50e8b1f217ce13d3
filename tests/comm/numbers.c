/* Numbers in the options of the tools: what is one, and what is refused. */
#include "tests/test.h"
#include "tools/number.h"

static const char *const no_numbers[] = {"-1",  "+1",  "1e3", "1XiB",  "0x10", " 8",  "8 ",  "8k",
                                         "nan", "inf", "",    "1e400", "-",    "1.5", "9,5", "99999999999999999999"};
enum { NO_NUMBERS = sizeof no_numbers / sizeof *no_numbers };

static void whole(void)
{
    int64_t value = 7;
    for (int i = 0; i < NO_NUMBERS; i++)
        WF_EXPECT(!number_whole(no_numbers[i], 0, INT64_MAX, &value) && value == 7, "\"%s\" is %lld", no_numbers[i],
                  (long long)value);
    WF_EXPECT(!number_whole("4", 5, 9, &value) && !number_whole("10", 5, 9, &value) && value == 7, "out of the range");
    WF_EXPECT(!number_whole("9223372036854775808", 0, INT64_MAX, &value) && value == 7, "2^63 is %lld",
              (long long)value);
    WF_EXPECT(number_whole("9223372036854775807", 0, INT64_MAX, &value) && value == INT64_MAX, "2^63 - 1 is %lld",
              (long long)value);
    WF_EXPECT(number_whole("007", 7, 7, &value) && value == 7, "007 is %lld", (long long)value);
}

static void lists(void)
{
    const char *text = "4,3x";
    int64_t value = 0;
    WF_EXPECT(number_next(&text, 1, 9, &value) && value == 4 && *text == ',', "%lld, then \"%s\"", (long long)value,
              text);
    WF_EXPECT(!number_next(&text, 1, 9, &value) && *text == ',', "a comma is %lld", (long long)value);
    text++;
    WF_EXPECT(number_next(&text, 1, 9, &value) && value == 3 && *text == 'x', "%lld, then \"%s\"", (long long)value,
              text);
}

static void amounts(void)
{
    for (int i = 0; i < NO_NUMBERS; i++) {
        const double value = number_amount(no_numbers[i], number_bytes);
        const char second = no_numbers[i][0] ? no_numbers[i][1] : '\0';
        const bool good = no_numbers[i][0] == '9' || second == '.'; /* as an amount: many, or a fraction */
        WF_EXPECT(second == ',' || good == (value > 0), "\"%s\" is %g", no_numbers[i], value);
    }
    WF_EXPECT(number_amount("9,5", number_bytes) == 0 && number_amount(".5", number_bytes) == 0 &&
                  number_amount("1.", number_bytes) == 1 && number_amount("1.5.5", number_bytes) == 0,
              "points and commas");
    WF_EXPECT(number_amount("1.5KiB", number_bytes) == 1536 && number_amount("3TB", number_bytes) == 3e12 &&
                  number_amount("12", number_bytes) == 12 && number_amount("0", number_bytes) == 0,
              "amounts are others");
    char digits[402];
    for (int i = 0; i < 401; i++)
        digits[i] = '9';
    digits[401] = '\0';
    WF_EXPECT(number_amount(digits, number_bytes) == 0, "401 digits are %g", number_amount(digits, number_bytes));
}

int main(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"whole", whole}, {"lists", lists}, {"amounts", amounts}, {0}});
}
