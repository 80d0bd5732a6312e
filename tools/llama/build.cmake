# Lowers the time to compile llama-server (docs/adr/0057). CMake includes this file after each `project()` of llama.cpp.
#
# The kernels of ggml, and sources that compute for each token, image or piece of audio, keep -O3. All other sources are
# compiled with -O1 and with precompiled headers, small ones in groups.

if(PROJECT_NAME STREQUAL "ggml")
    string(REPLACE "-O1" "-O3" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
    return()
endif()
# CMake before 3.19 has no deferred calls: everything keeps -O3.
if(NOT PROJECT_NAME STREQUAL "llama.cpp" OR CMAKE_VERSION VERSION_LESS 3.19)
    return()
endif()
string(REPLACE "-O3" "-O1" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")

function(herdsman_set_optimization)
    foreach(target llama llama-common mtmd)
        get_target_property(folder ${target} SOURCE_DIR)
        get_target_property(sources ${target} SOURCES)
        foreach(source IN LISTS sources)
            get_filename_component(path "${source}" ABSOLUTE BASE_DIR "${folder}")
            file(RELATIVE_PATH name "${CMAKE_SOURCE_DIR}" "${path}")
            if(name MATCHES "^src/(unicode|llama-(batch|grammar|kv-cache|memory|sampler|vocab))[^/]*\\.cpp$"
                OR name MATCHES "^common/(ngram|peg-parser|sampling|speculative|trie|unicode)[^/]*\\.cpp$"
                OR name MATCHES "^tools/mtmd/mtmd-(audio|helper|image)[^/]*\\.cpp$")
                set_property(SOURCE "${path}" TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS -O3)
                # The compiler refuses headers that were compiled with other options.
                set_property(SOURCE "${path}" TARGET_DIRECTORY ${target} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
            endif()
            if(NOT name MATCHES "^((src|tools/mtmd)/models|common/parsers)/")
                set_property(SOURCE "${path}" TARGET_DIRECTORY ${target} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
            endif()
        endforeach()
    endforeach()
    set_target_properties(llama PROPERTIES UNITY_BUILD_BATCH_SIZE 32)
    set_target_properties(llama-common PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
    target_precompile_headers(llama PRIVATE "${CMAKE_SOURCE_DIR}/src/llama-model.h")
    target_precompile_headers(llama-common PRIVATE "${CMAKE_SOURCE_DIR}/common/chat.h")
    target_precompile_headers(server-context PRIVATE "${CMAKE_SOURCE_DIR}/tools/server/server-common.h")
endfunction()

# The targets exist only at the end of the top-level folder.
cmake_language(DEFER CALL herdsman_set_optimization)
