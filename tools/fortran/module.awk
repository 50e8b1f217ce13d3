# Writes the Fortran module weft, without its end, from the headers for users:
#     awk -f cmake/statements.awk -f tools/fortran/module.awk HEADER...
# Every constant, struct and function of the headers is in it, or named in its first comment; a declaration that this file does
# not understand is an error. A pointer is a c_ptr, but a `const char *` that a function takes is an optional text that ends
# with c_null_char: absent, it is NULL. A component of a struct is zero where a constructor leaves it out.

function fail(what)
{
    print "module.awk: " what ": should be a declaration as the headers for users have them" >"/dev/stderr"
    failed = 1
    exit 1
}

function trim(s)
{
    gsub(/[ \t]+/, " ", s)
    sub(/^ /, "", s)
    sub(/ $/, "", s)
    return s
}

# The last word of a text.
function last(s)
{
    match(s, /[A-Za-z0-9_]+$/)
    return substr(s, RSTART)
}

function add_constant(name, value)
{
    constant[++constants] = name
    value_of[name] = value
}

function leave_out(name)
{
    if (!(name in out)) {
        out[name] = 1
        left = left "! " name "\n"
    }
}

# A macro is a constant if it is a number; one without a value, or with an attribute, says nothing to Fortran.
function directive(line, word, value)
{
    if (!match(line, /^#define WF_[A-Z0-9_]+/))
        return
    word = substr(line, 9, RLENGTH - 8)
    value = trim(substr(line, RSTART + RLENGTH))
    if (value ~ /^\(?-?[0-9]+\)?$/)
        add_constant(word, value)
    else if (value ~ /^\(-0x1p-[0-9]+\)$/) {
        match(value, /p-[0-9]+/)
        real[word] = 1
        add_constant(word, "-(2.0_c_double**(" substr(value, RSTART + 1, RLENGTH - 1) "))")
    } else if (value != "" && value !~ /^(\([a-z, ]*\) )?__attribute__/)
        leave_out(word)
}

function read_enumerators(body, list, n, i, next_value, name, part)
{
    next_value = 0
    n = split(body, list, ",")
    for (i = 1; i <= n; i++) {
        name = trim(list[i])
        if (name == "")
            continue
        if (split(name, part, / *= */) == 2) {
            if (part[2] !~ /^-?[0-9]+$/)
                fail("enumerator " name)
            name = part[1]
            next_value = part[2] + 0
        }
        add_constant(name, next_value++)
    }
}

function statement(declaration, body, name)
{
    declaration = trim(declaration)
    sub(/^WF_PLACED /, "", declaration)
    sub(/ WF_[A-Z]+(\([0-9, ]*\))?$/, "", declaration)
    if (declaration ~ /^(typedef )?enum/) {
        if (declaration ~ /^typedef/)
            kind[last(declaration)] = "enum"
        read_enumerators(body)
    } else if (declaration ~ /^(typedef )?struct [A-Za-z_0-9]+( [A-Za-z_0-9]+)?$/) {
        name = last(declaration)
        if (body == "")
            return # only pointers to it are used
        kind[name] = "struct"
        body_of[name] = body
        struct[++structs] = name
    } else if (match(declaration, /^typedef .*\(\*wf_[a-z0-9_]+\)/)) {
        match(declaration, /\(\*wf_[a-z0-9_]+/)
        kind[substr(declaration, RSTART + 2, RLENGTH - 2)] = "callback"
    } else if (declaration ~ /^static / && match(declaration, /wf_[a-z0-9_]+\(/))
        leave_out(substr(declaration, RSTART, RLENGTH - 1))
    else if (match(declaration, /wf_[a-z0-9_]+\(/)) {
        name = substr(declaration, RSTART, RLENGTH - 1)
        if (declaration ~ /\.\.\.\)$/)
            leave_out(name)
        else if (!(name in result_of)) {
            result_of[name] = trim(substr(declaration, 1, RSTART - 1))
            parameters_of[name] = substr(declaration, RSTART + RLENGTH)
            sub(/\)$/, "", parameters_of[name])
            function_name[++functions] = name
        }
    } else if (declaration != "")
        fail(declaration)
}

# The Fortran type of a C type without stars.
function plain_type(base)
{
    if (base in kind)
        return kind[base] == "enum" ? "integer(c_int)" : kind[base] == "callback" ? "type(c_funptr)" : "type(" base ")"
    if (base ~ /^(int|unsigned|unsigned int)$/)
        return "integer(c_int)"
    if (base ~ /^u?int(8|16|32|64)_t$/) {
        sub(/^u/, "", base)
        return "integer(c_" base ")"
    }
    if (base == "size_t")
        return "integer(c_size_t)"
    if (base == "float" || base == "double")
        return "real(c_" base ")"
    if (base == "bool")
        return "logical(c_bool)"
    if (base == "char")
        return "character(kind=c_char)"
    fail("type " base)
}

function zero_of(type)
{
    if (type == "type(c_ptr)")
        return "c_null_ptr"
    if (type == "type(c_funptr)")
        return "c_null_funptr"
    if (type ~ /^type/)
        return substr(type, 6, length(type) - 6) "()"
    return type ~ /^logical/ ? ".false._c_bool" : type ~ /^character/ ? "c_null_char" : type ~ /^real/ ? "0" : "0"
}

# Cuts "const int64_t *" or "wf_edge lo[6]" into base, stars, name and bound.
function read_type(text, named)
{
    gsub(/(^| )(const|struct) /, " ", text)
    gsub(/\*const /, "*", text)
    bound = name_read = ""
    if (match(text, /\[[A-Za-z0-9_ *+]*\]$/)) {
        bound = substr(text, RSTART + 1, RLENGTH - 2)
        text = substr(text, 1, RSTART - 1)
    }
    if (named) {
        name_read = last(trim(text))
        text = substr(trim(text), 1, length(trim(text)) - length(name_read))
    }
    stars = gsub(/\*/, " ", text)
    base_read = trim(text)
}

function put_component(text, type)
{
    read_type(text, 1)
    type = stars > 0 ? "type(c_ptr)" : plain_type(base_read)
    printf "    %s :: %s%s = %s\n", type, name_read, bound != "" ? "(" bound ")" : "", zero_of(type)
}

# A struct after those that are in it.
function put_struct(name, field, n, i, first, more, j, prefix, count)
{
    if (name in put)
        return
    put[name] = 1
    n = split(body_of[name], field, ";")
    for (i = 1; i <= n; i++) {
        read_type(trim(field[i]), 1)
        if (base_read in kind && kind[base_read] == "struct" && stars == 0)
            put_struct(base_read)
    }
    printf "  type, bind(c) :: %s\n", name
    for (i = 1; i <= n; i++) {
        first = trim(field[i])
        if (first == "")
            continue
        if (match(first, /\(\*[a-z_0-9]+\)\(/)) {
            printf "    type(c_funptr) :: %s = c_null_funptr\n", substr(first, RSTART + 2, RLENGTH - 4)
            continue
        }
        count = split(first, more, /, */) # "const wf_tensor *a, *b": the type is what stands before the first name
        put_component(more[1])
        prefix = trim(more[1])
        sub(/ ?\**[A-Za-z0-9_]+(\[[A-Za-z0-9_]*\])?$/, "", prefix)
        for (j = 2; j <= count; j++)
            put_component(prefix " " more[j])
    }
    print "  end type\n"
}

# Parameters, cut at the commas outside of brackets.
function cut_parameters(text, into, n, depth, at, c)
{
    n = 1
    into[1] = ""
    for (at = 1; at <= length(text); at++) {
        c = substr(text, at, 1)
        depth += (c == "(") - (c == ")")
        if (c == "," && depth == 0)
            into[++n] = ""
        else
            into[n] = into[n] c
    }
    return into[1] ~ /^ *(void)? *$/ ? 0 : n
}

function declare_parameter(text, word)
{
    text = trim(text)
    if (match(text, /\(\*[a-z_0-9]+\)\(/)) {
        name_read = substr(text, RSTART + 2, RLENGTH - 4)
        return "      type(c_funptr), value :: " name_read "\n"
    }
    word = text ~ /^const char \*[a-z_0-9]+$/
    read_type(text, 1)
    if (name_read == "" || base_read == "")
        fail("parameter " text)
    if (word)
        return "      character(kind=c_char), intent(in), optional :: " name_read "(*)\n"
    return "      " (stars > 0 || bound != "" || text ~ /\[\]$/ ? "type(c_ptr)" : plain_type(base_read)) ", value :: " name_read "\n"
}

function put_function(name, list, n, i, names, declared, result)
{
    names = declared = ""
    n = cut_parameters(parameters_of[name], list)
    for (i = 1; i <= n; i++) {
        declared = declared declare_parameter(list[i])
        names = names (i > 1 ? ", " (i % 6 == 1 ? "&\n      " : "") : "") name_read
    }
    result = result_of[name]
    printf "    %s %s(%s) &\n      bind(c, name='%s')\n      import\n", result == "void" ? "subroutine" : "function", name, names, name
    if (result != "void") {
        read_type(result " x", 1)
        print "      " (stars > 0 ? "type(c_ptr)" : plain_type(base_read)) " :: " name
    }
    printf "%s    end %s\n", declared, result == "void" ? "subroutine" : "function"
}

# Fortran knows no case: a constant whose name a function or a type has ends with an underscore.
function fortran_name(name)
{
    return tolower(name) in result_of || tolower(name) in kind ? name "_" : name
}

END {
    if (failed)
        exit 1
    read_statements()
    if (failed)
        exit 1
    print "! Made by tools/fortran/module.awk of the headers for users, which are the contracts: <weft/weft.h>.\n!"
    print "! Pointers are of type(c_ptr). A text that a function takes ends with c_null_char, and is NULL where it is absent. Options are"
    print "! structs whose components are zero where they are left out: wf_adam_opts(lr=1d-3_c_double). A constant whose name is"
    print "! that of a function, but for case, ends with an underscore: WF_SUM_."
    print "!\n! Left out, since Fortran cannot say them (macros, formats, inline functions):"
    printf "%s", left
    print "module weft\n  use, intrinsic :: iso_c_binding\n  implicit none\n  public\n"
    for (i = 1; i <= constants; i++) {
        name = constant[i]
        type = "integer(c_int)"
        if (name in real)
            type = "real(c_double)"
        print "  " type ", parameter :: " fortran_name(name) " = " value_of[name]
    }
    print ""
    for (i = 1; i <= structs; i++)
        put_struct(struct[i])
    print "  interface"
    for (i = 1; i <= functions; i++)
        put_function(function_name[i])
    print "  end interface\n"
}
