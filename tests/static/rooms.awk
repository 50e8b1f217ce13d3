# The folders and rooms of the library, from the lowest to the highest: what include_arrows.awk and call_arrows.awk
# check lines of sources and symbols of objects against.

BEGIN {
    # Folder -> folders that it may include and call. Examples see what is installed, and each other.
    arrow["core"] = " core "
    arrow["comm"] = " core comm "
    arrow["layers"] = " core comm layers "
    arrow["optim"] = " core comm layers optim "
    arrow["datasets"] = " core comm datasets "
    arrow["fit"] = " core comm layers optim datasets fit "
    arrow["examples"] = " examples "
    arrow["tests"] = " core comm layers optim datasets fit examples tests tools "
    arrow["weft.h"] = arrow["tests"]

    # Room -> rooms of the same folder whose _impl header it may include, and whose functions it may call, beside its own
    # and the folder's header. A folder's own files, "FOLDER/.", are above its rooms in comm and layers.
    room["comm/safety"] = " "
    room["comm/transport"] = " safety "
    room["comm/guard"] = " safety transport "
    room["comm/engine"] = room["comm/guard"] "guard "
    room["comm/collective"] = room["comm/engine"] "engine "
    room["comm/reduce"] = room["comm/mesh"] = room["comm/file"] = room["comm/collective"] "collective "
    room["comm/proof"] = room["comm/collective"] # no room of comm calls it: schedules run without their proof
    room["comm/."] = room["comm/reduce"] "reduce mesh file "
    room["layers/functions"] = " "
    room["layers/base"] = room["layers/communication"] = " functions "
    room["layers/window"] = " functions base "
    room["layers/serial"] = " functions base window "
    room["layers/pipeline"] = room["layers/multi_node_chain"] = room["layers/serial"] "serial "
    room["layers/parallel"] = room["layers/serial"] "serial communication "
    room["layers/."] = room["layers/parallel"] "parallel pipeline multi_node_chain "
    room["tests/offline"] = " cuda "           # replaces a part of core/cuda
    room["tests/threads"] = " safety transport mesh engine " # takes the place of MPI
    room["tests/comm"] = " guard "             # its limits, which calls reach by chance
    inside["tests/offline"] = "core"
    inside["tests/comm"] = "comm"
    inside["tests/threads"] = "comm"
}
